package server

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec"
)

// poolCalls implements the calls about sandboxes that are made ahead.
type poolCalls struct {
	agboxv1.UnimplementedPoolServiceServer
	ledger    *ledger.Ledger
	loop      Loop
	admission *admission.Controller
}

// SetPool makes a pool, or changes it.
func (s *poolCalls) SetPool(ctx context.Context, req *agboxv1.SetPoolRequest) (*agboxv1.SetPoolResponse, error) {
	resolved, err := s.admission.AdmitBuilds(ctx, withHome(ctx, req.GetCreate()))
	if err != nil {
		return nil, err
	}
	ahead, why := spec.Ahead(resolved)
	if why != "" {
		return nil, invalid("No sandbox can be made ahead of this: %s.", why)
	}
	if req.GetName() == ledger.AutoPool {
		return nil, invalid("The pool %s is the daemon's own, of what was created last (setting auto-pool): choose another name.", req.GetName())
	}
	pool, err := s.ledger.SetPool(ctx, req.GetName(), int(req.GetSize()), ahead)
	if err != nil {
		return nil, err
	}
	s.loop.Poke()
	return &agboxv1.SetPoolResponse{Pool: s.shown(pool)}, nil
}

// ListPools returns all pools.
func (s *poolCalls) ListPools(context.Context, *agboxv1.ListPoolsRequest) (*agboxv1.ListPoolsResponse, error) {
	resp := new(agboxv1.ListPoolsResponse)
	for _, p := range s.ledger.Pools() {
		resp.Pools = append(resp.Pools, s.shown(p))
	}
	return resp, nil
}

// RemovePool removes a pool.
func (s *poolCalls) RemovePool(ctx context.Context, req *agboxv1.RemovePoolRequest) (*agboxv1.RemovePoolResponse, error) {
	id, err := s.ledger.RemovePool(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	for _, sb := range s.ledger.Ahead(id) {
		if err := s.ledger.DropAhead(ctx, sb.ID); err != nil {
			return nil, err
		}
		s.loop.Interrupt(sb.ID)
	}
	return new(agboxv1.RemovePoolResponse), nil
}

func (s *poolCalls) shown(p ledger.Pool) *agboxv1.Pool {
	out := &agboxv1.Pool{
		Name: p.Name, Spec: p.Spec, Size: uint32(p.Size), CreatedAt: timestamppb.New(p.CreatedAt),
		Hits: p.Hits, Misses: p.Misses, Trouble: s.loop.PoolTrouble(p.ID),
	}
	if p.UsedAt.After(p.CreatedAt) {
		out.UsedAt = timestamppb.New(p.UsedAt)
	}
	for _, sb := range s.ledger.Ahead(p.ID) {
		switch {
		case sb.Want == machine.WantDeleted:
		case sb.State == machine.Pending:
			out.Coming++
		case sb.State == machine.Ready:
			if out.Ready++; out.GetOldestAt() == nil || sb.ReadyAt.Before(out.GetOldestAt().AsTime()) {
				out.OldestAt = timestamppb.New(sb.ReadyAt)
			}
		}
	}
	if out.Trouble == "" {
		out.Coming = max(out.Coming, uint32(max(0, s.loop.PoolWants(p)-int(out.Ready))))
	}
	return out
}
