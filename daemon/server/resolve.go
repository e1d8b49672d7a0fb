package server

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

// Resolve returns what a text means. It is the only call that takes names and beginnings of
// ids of sandboxes, execs and agents.
func (s *sandboxCalls) Resolve(ctx context.Context, req *agboxv1.ResolveRequest) (*agboxv1.ResolveResponse, error) {
	list, err := s.ledger.Resolve(ctx, req.GetKind(), req.GetText())
	if err != nil {
		return nil, err
	}
	n := min(len(list), ledger.MaxReferents)
	return &agboxv1.ResolveResponse{Referents: list[:n], More: len(list) > n}, nil
}
