package server

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec"
)

// PoolTemplate is a pool of the daemon's configuration.
type PoolTemplate struct {
	Name string
	Size int
	// Config describes its sandboxes, as a sandbox file. File is the file that has it, and Home the folder
	// that "~" stands for in it.
	Config     []byte
	File, Home string
}

// poolCalls implements the calls about sandboxes that are made ahead.
type poolCalls struct {
	agboxv1.UnimplementedPoolServiceServer
	ledger    *ledger.Ledger
	loop      Loop
	admission *admission.Controller
	templates []PoolTemplate
	log       *slog.Logger

	mu sync.Mutex // guards failed
	// failed says why a pool of the configuration could not be set.
	failed map[string]error
}

// SetPool makes a pool, or changes it.
func (s *poolCalls) SetPool(ctx context.Context, req *agboxv1.SetPoolRequest) (*agboxv1.SetPoolResponse, error) {
	if err := s.own(req.GetName()); err != nil {
		return nil, err
	}
	pool, err := s.set(ctx, req.GetName(), int(req.GetSize()), withHome(ctx, req.GetCreate()), s.ledger.SetPool)
	if err != nil {
		return nil, err
	}
	return &agboxv1.SetPoolResponse{Pool: s.shown(pool)}, nil
}

// own refuses the name of a pool that only the configuration changes.
func (s *poolCalls) own(name string) error {
	if name == ledger.AutoPool {
		return invalid("The pool %s is the daemon's own, of what was created last (setting auto-pool): choose another name.", name)
	}
	if i := slices.IndexFunc(s.templates, func(t PoolTemplate) bool { return t.Name == name }); i >= 0 {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_INVALID_REQUEST,
			"The pool %s is set in %s: change it there, and restart the daemon.", name, s.templates[i].File)
	}
	return nil
}

func (s *poolCalls) set(ctx context.Context, name string, size int, create *agboxv1.CreateSandboxRequest,
	put func(context.Context, string, int, *agboxv1.CreateSpec) (ledger.Pool, error),
) (ledger.Pool, error) {
	resolved, err := s.admission.AdmitBuilds(ctx, create)
	if err != nil {
		return ledger.Pool{}, err
	}
	ahead, why := spec.Ahead(resolved)
	if why != "" {
		return ledger.Pool{}, invalid("No sandbox can be made ahead of this: %s.", why)
	}
	pool, err := put(ctx, name, size, ahead)
	if err == nil {
		s.loop.Poke()
	}
	return pool, err
}

// configureAgain is the pause after a pool of the configuration could not be set.
const configureAgain = 10 * time.Second

// keep sets the pools of the configuration, and removes those that it had before. What fails is shown as the
// trouble of the pool, and tried again until ctx ends.
func (s *poolCalls) keep(ctx context.Context) {
	for _, p := range s.ledger.Pools() {
		if p.Configured && !slices.ContainsFunc(s.templates, func(t PoolTemplate) bool { return t.Name == p.Name }) {
			if err := s.remove(ctx, p.Name); err != nil {
				s.log.Error("a pool that the configuration does not have any more cannot be removed; the next start tries again", "pool", p.Name, "error", err)
			}
		}
	}
	for left := slices.Clone(s.templates); len(left) > 0; {
		left = slices.DeleteFunc(left, func(t PoolTemplate) bool {
			_, err := s.set(ctx, t.Name, t.Size, &agboxv1.CreateSandboxRequest{
				ConfigYaml: t.Config, ConfigPath: t.File, ConfigDir: filepath.Dir(t.File), HomeDir: t.Home,
			}, s.ledger.ConfigurePool)
			s.note(t, err)
			return err == nil
		})
		if len(left) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(configureAgain):
		}
	}
}

// note keeps why a pool of the configuration could not be set, and logs it once.
func (s *poolCalls) note(t PoolTemplate, err error) {
	s.mu.Lock()
	was := s.failed[t.Name]
	s.failed[t.Name] = err
	s.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		s.log.Warn("a pool of the configuration cannot be set yet", "pool", t.Name, "file", t.File, "error", err)
	}
}

// ListPools returns all pools.
func (s *poolCalls) ListPools(context.Context, *agboxv1.ListPoolsRequest) (*agboxv1.ListPoolsResponse, error) {
	resp := new(agboxv1.ListPoolsResponse)
	for _, p := range s.ledger.Pools() {
		resp.Pools = append(resp.Pools, s.shown(p))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.templates {
		i := slices.IndexFunc(resp.GetPools(), func(p *agboxv1.Pool) bool { return p.GetName() == t.Name })
		if i < 0 { // it is not set yet
			i = len(resp.GetPools())
			resp.Pools = append(resp.Pools, &agboxv1.Pool{Name: t.Name, Size: uint32(t.Size), Coming: uint32(t.Size), Configured: true})
		}
		if why := s.failed[t.Name]; why != nil {
			resp.Pools[i].Coming, resp.Pools[i].Trouble = 0, why.Error()
			if resp.GetPools()[i].GetSpec() != nil {
				resp.Pools[i].Trouble += " Until it can be set, the pool is what it was before."
			}
		}
	}
	slices.SortFunc(resp.GetPools(), func(a, b *agboxv1.Pool) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return resp, nil
}

// RemovePool removes a pool.
func (s *poolCalls) RemovePool(ctx context.Context, req *agboxv1.RemovePoolRequest) (*agboxv1.RemovePoolResponse, error) {
	if name := req.GetName(); name != ledger.AutoPool {
		if err := s.own(name); err != nil {
			return nil, err
		}
	}
	if err := s.remove(ctx, req.GetName()); err != nil {
		return nil, err
	}
	return new(agboxv1.RemovePoolResponse), nil
}

func (s *poolCalls) remove(ctx context.Context, name string) error {
	id, err := s.ledger.RemovePool(ctx, name)
	if err != nil {
		return err
	}
	for _, sb := range s.ledger.Ahead(id) {
		if err := s.loop.Unstock(ctx, sb.ID); err != nil {
			return err
		}
	}
	return nil
}

func (s *poolCalls) shown(p ledger.Pool) *agboxv1.Pool {
	out := &agboxv1.Pool{
		Name: p.Name, Spec: p.Spec, Size: uint32(p.Size), CreatedAt: timestamppb.New(p.CreatedAt),
		Hits: p.Hits, Misses: p.Misses, Configured: p.Configured,
	}
	if p.UsedAt.After(p.CreatedAt) {
		out.UsedAt = timestamppb.New(p.UsedAt)
	}
	for _, sb := range s.ledger.Ahead(p.ID) {
		switch {
		case sb.Want == machine.WantDeleted:
		case sb.State == machine.Pending:
			out.Coming++
		case sb.State == machine.Ready && s.loop.Condition(sb) == (reconcile.Condition{}): // nobody gets another one
			if out.Ready++; out.GetOldestAt() == nil || sb.ReadyAt.Before(out.GetOldestAt().AsTime()) {
				out.OldestAt = timestamppb.New(sb.ReadyAt)
			}
		}
	}
	if out.Trouble = s.loop.PoolTrouble(p, int(out.GetReady())); out.GetTrouble() == "" {
		out.Coming = max(out.Coming, uint32(max(0, s.loop.PoolWants(p)-int(out.Ready))))
	}
	return out
}
