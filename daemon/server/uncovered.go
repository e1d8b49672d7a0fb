package server

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ListUncovered returns what came into the writable mounts of a sandbox and has no cover.
func (f fileCalls) ListUncovered(ctx context.Context, req *agboxv1.ListUncoveredRequest) (*agboxv1.ListUncoveredResponse, error) {
	sb, err := f.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	found, notSearched, err := f.loop.Uncovered(ctx, sb)
	if err != nil {
		return nil, err
	}
	return &agboxv1.ListUncoveredResponse{Paths: inBytes(found), NotSearched: inBytes(notSearched)}, nil
}

// inBytes is for paths, which need not be valid UTF-8.
func inBytes(paths []string) (all [][]byte) {
	for _, p := range paths {
		all = append(all, []byte(p))
	}
	return all
}
