package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/store"
)

// MaxPools bounds the pools of an install, because each request is compared with each.
const MaxPools = 64

// MaxPoolSize bounds the sandboxes that a pool keeps ready, as SetPoolRequest.size does.
const MaxPoolSize = 64

func poolOf(name string, p *storev1.Pool) Pool {
	out := Pool{
		Name: name, ID: p.GetId(), Spec: p.GetSpec(), Size: int(p.GetSize()), CreatedAt: p.GetCreatedAt().AsTime(),
		Hits: p.GetHits(), Misses: p.GetMisses(), UsedAt: p.GetUsedAt().AsTime(), MadeBy: p.GetMadeBy(),
		Configured: p.GetConfigured(),
	}
	if out.UsedAt.Before(out.CreatedAt) { // nobody has used what it is of now
		out.UsedAt = out.CreatedAt
	}
	return out
}

// openPools loads all pools. One that cannot be read is logged and left out.
func (l *Ledger) openPools(ctx context.Context) error {
	l.pools.all = make(map[string]Pool)
	return l.store.View(ctx, func(tx *store.Tx) error {
		for _, name := range tx.PoolNames() {
			p, err := tx.Pool(name)
			if err != nil {
				l.log.Error("the record of a pool cannot be read and is left out", "pool", name, "error", err)
				continue
			}
			l.pools.all[name] = poolOf(name, p)
		}
		return nil
	})
}

// Pools returns all pools by name.
func (l *Ledger) Pools() []Pool {
	l.pools.mu.Lock()
	defer l.pools.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.pools.all), func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
}

// HasPools reports whether there is a pool.
func (l *Ledger) HasPools() bool {
	l.pools.mu.Lock()
	defer l.pools.mu.Unlock()
	return len(l.pools.all) > 0
}

// Pool returns the pool with an id.
func (l *Ledger) Pool(id string) (Pool, bool) {
	for _, p := range l.Pools() {
		if p.ID == id {
			return p, true
		}
	}
	return Pool{}, false
}

// Stocked returns the ids of pools, also of former ones, for which there are sandboxes that nobody has.
func (l *Ledger) Stocked() []string {
	l.sandboxes.mu.RLock()
	defer l.sandboxes.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.sandboxes.ahead))
}

// Ahead returns the sandboxes of the pool with an id that nobody has, oldest first.
func (l *Ledger) Ahead(pool string) []Sandbox {
	b := &l.sandboxes
	b.mu.RLock()
	defer b.mu.RUnlock()
	var list []Sandbox
	for id := range b.ahead[pool] {
		list = append(list, b.all[id])
	}
	slices.SortFunc(list, func(a, b Sandbox) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	return list
}

// AutoPool is the name of the pool of what was created last.
const AutoPool = "auto"

// RenewPools makes the pools of another daemon anew: what it has made ahead may differ from what this one
// makes, and is not handed out. by names this one, with the settings that show in its sandboxes, and auto is
// the size of AutoPool. ahead says what of a spec this one makes, or why it makes nothing; such a pool is
// removed. Call it before anything else about pools.
func (l *Ledger) RenewPools(ctx context.Context, by string, auto int, ahead func(*agboxv1.CreateSpec) (*agboxv1.CreateSpec, string)) {
	l.pools.madeBy = by
	for _, p := range l.Pools() {
		size := p.Size
		if p.Name == AutoPool {
			size = auto
		}
		var err error
		switch {
		case size == 0:
			_, err = l.RemovePool(ctx, p.Name)
		case p.MadeBy != by || size != p.Size:
			err = l.renewPool(ctx, p, size, ahead)
		}
		if err != nil {
			l.log.Error("a pool cannot be made anew", "pool", p.Name, "error", err)
		}
	}
}

// SetPool makes a pool, or changes it. A pool with another spec has another id. The error is POOL_LIMIT
// if there are too many.
func (l *Ledger) SetPool(ctx context.Context, name string, size int, spec *agboxv1.CreateSpec) (Pool, error) {
	return l.makePool(ctx, Pool{Name: name, Size: size, Spec: spec})
}

// ConfigurePool is SetPool for one of the daemon's configuration.
func (l *Ledger) ConfigurePool(ctx context.Context, name string, size int, spec *agboxv1.CreateSpec) (Pool, error) {
	return l.makePool(ctx, Pool{Name: name, Size: size, Spec: spec, Configured: true})
}

func (l *Ledger) makePool(ctx context.Context, wish Pool) (p Pool, err error) {
	for {
		was, _ := l.pool(wish.Name)
		if p, err = l.setPool(ctx, was, wish); !errors.Is(err, errPoolChanged) {
			return p, err
		}
	}
}

// errPoolChanged means that somebody has changed a pool meanwhile.
var errPoolChanged = errors.New("the pool has changed")

// setPool makes a pool what it was not, or was. The error is errPoolChanged if it is not what it was any more.
func (l *Ledger) setPool(ctx context.Context, was, wish Pool) (Pool, error) {
	name, spec := wish.Name, wish.Spec
	next := &storev1.Pool{Id: ids.New(), Size: uint32(wish.Size), CreatedAt: timestamppb.New(l.now()), MadeBy: l.pools.madeBy, Configured: wish.Configured}
	if was.ID != "" {
		revealed, err := l.PoolSpec(ctx, was)
		if err == nil && proto.Equal(revealed, spec) {
			next.CreatedAt = timestamppb.New(was.CreatedAt)
			if was.MadeBy == next.GetMadeBy() {
				next.Id = was.ID
			}
		}
	}
	if _, err := l.hide(ctx, next.GetId(), spec); err != nil {
		return Pool{}, err
	}
	var unused string
	err := l.store.Update(ctx, func(tx *store.Tx) error {
		unused = ""
		now, err := tx.Pool(name)
		if errdefs.IsNotFound(err) {
			now, err = new(storev1.Pool), nil
		}
		switch {
		case err != nil:
			return err
		case now.GetId() != was.ID:
			unused = next.GetId()
			return errPoolChanged
		case was.ID == "" && len(tx.PoolNames()) >= MaxPools:
			unused = next.GetId()
			return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_POOL_LIMIT,
				"There are %d pools already: remove one with \"agbox pool rm\".", MaxPools)
		case was.ID != "" && was.ID != next.GetId():
			unused = was.ID
			if err := tx.RemovePool(name, now); err != nil {
				return err
			}
		}
		next.Hits, next.Misses, next.UsedAt = now.GetHits(), now.GetMisses(), now.GetUsedAt()
		tx.OnCommit(func() { l.putPool(poolOf(name, next)) })
		return tx.PutPool(name, next, spec)
	})
	if err = errors.Join(err, l.eraseUnused(unused)); err != nil {
		return Pool{}, err
	}
	return poolOf(name, next), nil
}

// RemovePool removes a pool and returns its id. The sandboxes that were made for it are not removed. The
// error is POOL_NOT_FOUND if there is none.
func (l *Ledger) RemovePool(ctx context.Context, name string) (id string, err error) {
	err = l.store.Update(ctx, func(tx *store.Tx) error {
		was, err := tx.Pool(name)
		if errdefs.IsNotFound(err) {
			return poolNotFound(name)
		}
		id = was.GetId()
		tx.OnCommit(func() {
			l.pools.mu.Lock()
			defer l.pools.mu.Unlock()
			delete(l.pools.all, name)
		})
		return tx.RemovePool(name, was)
	})
	if err != nil {
		return "", err
	}
	return id, l.eraseUnused(id)
}

func poolNotFound(name string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_POOL_NOT_FOUND, "There is no pool %q; \"agbox pool ls\" shows all.", name)
}

func (l *Ledger) eraseUnused(id string) error {
	if id == "" {
		return nil
	}
	return l.store.Keys().Erase(id)
}

func (l *Ledger) pool(name string) (Pool, bool) {
	l.pools.mu.Lock()
	defer l.pools.mu.Unlock()
	p, exists := l.pools.all[name]
	return p, exists
}

func (l *Ledger) putPool(p Pool) {
	l.pools.mu.Lock()
	defer l.pools.mu.Unlock()
	l.pools.all[p.Name] = p
}

func (l *Ledger) renewPool(ctx context.Context, p Pool, size int, ahead func(*agboxv1.CreateSpec) (*agboxv1.CreateSpec, string)) error {
	spec, err := l.PoolSpec(ctx, p)
	if err != nil {
		return err
	}
	made, why := ahead(spec)
	if why != "" {
		l.log.Warn("a pool is removed, because its sandboxes are not made ahead any more", "pool", p.Name, "reason", why)
		_, err = l.RemovePool(ctx, p.Name)
		return err
	}
	_, err = l.makePool(ctx, Pool{Name: p.Name, Size: size, Spec: made, Configured: p.Configured})
	return err
}

// PoolSpec returns the spec of a pool with the secret values. Only a new sandbox of the pool may get them.
// The error is a fault SECRETS_UNREADABLE.
func (l *Ledger) PoolSpec(ctx context.Context, p Pool) (*agboxv1.CreateSpec, error) {
	return view(ctx, l, func(tx *store.Tx) (*agboxv1.CreateSpec, error) {
		values, err := tx.SandboxSecrets(p.ID)
		return secrets.RevealSpec(p.Spec, values), err
	})
}

// PoolsFor returns the pools that make a spec ahead, by name, and an error about those that cannot be read. near
// are those that would but for the environment, except that of what was created last.
func (l *Ledger) PoolsFor(ctx context.Context, spec *agboxv1.CreateSpec) (fit, near []Pool, err error) {
	shown, _ := secrets.HideSpec(spec)
	for _, p := range l.Pools() {
		whole, same := (*agboxv1.CreateSpec)(nil), proto.Equal(p.Spec, shown)
		if same {
			var failed error
			whole, failed = l.PoolSpec(ctx, p)
			if err = errors.Join(err, failed); failed != nil {
				continue
			}
		}
		switch {
		case same && proto.Equal(whole, spec):
			fit = append(fit, p)
		case len(spec.GetPrepare()) > 0 && p.Name != AutoPool && proto.Equal(withoutEnv(p.Spec), withoutEnv(shown)):
			near = append(near, p)
		}
	}
	return fit, near, err
}

func withoutEnv(spec *agboxv1.CreateSpec) *agboxv1.CreateSpec {
	spec = proto.CloneOf(spec)
	spec.Envs, spec.SecretEnvs = nil, nil
	return spec
}

// Missed counts a request that fits the pool with an id and got none of its sandboxes.
func (l *Ledger) Missed(ctx context.Context, id string) error {
	return l.store.Update(ctx, func(tx *store.Tx) error { return l.served(tx, id, false) })
}

// served counts a request that fits the pool with an id, unless the pool was removed meanwhile.
func (l *Ledger) served(tx *store.Tx, id string, hit bool) error {
	known, exists := l.Pool(id)
	if !exists {
		return nil
	}
	p, err := tx.Pool(known.Name)
	if errdefs.IsNotFound(err) || err == nil && p.GetId() != id {
		return nil
	}
	if err != nil {
		return fmt.Errorf("count a request of pool %s: %w", known.Name, err)
	}
	if p.UsedAt = timestamppb.New(l.now()); hit {
		p.Hits++
	} else {
		p.Misses++
	}
	tx.OnCommit(func() { l.putPool(poolOf(known.Name, p)) })
	return tx.UpdatePool(known.Name, p)
}
