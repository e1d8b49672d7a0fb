package client

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Uncovered is what came into the writable mounts of a sandbox after it was made, and that
// this machine executes or agbox reads: the sandbox may have written it.
type Uncovered struct {
	// Paths are absolute paths on the host. A folder of git stands for a repository.
	Paths []string
	// NotSearched are mounts that are too large to find everything.
	NotSearched []string
}

// Uncovered returns what has no cover in a sandbox's writable mounts. The sandbox may be
// stopped.
func (c *Client) Uncovered(ctx context.Context, sandbox string) (Uncovered, error) {
	out, err := fileCall(ctx, c, agboxv1.FileServiceClient.ListUncovered, &agboxv1.ListUncoveredRequest{SandboxId: sandbox}, idempotent)
	return Uncovered{texts(out.GetPaths()), texts(out.GetNotSearched())}, err
}

func texts(all [][]byte) (out []string) {
	for _, one := range all {
		out = append(out, string(one))
	}
	return out
}
