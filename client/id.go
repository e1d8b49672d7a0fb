package client

import (
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// NewID returns a random id for a sandbox or an exec. A caller that chooses the id itself
// knows it even if the answer to its request is lost.
func NewID() string { return ids.New() }

// repeatableSandbox returns the request with a request key, so that it can be repeated
// after a lost answer. The key is the id if the caller gave no key.
func repeatableSandbox(in *agboxv1.CreateSandboxRequest) *agboxv1.CreateSandboxRequest {
	in = proto.CloneOf(in)
	in.SandboxId, in.RequestKey = idAndKey(in.GetSandboxId(), in.GetRequestKey())
	return in
}

// repeatableExec is repeatableSandbox for an exec.
func repeatableExec(in *agboxv1.CreateExecRequest) *agboxv1.CreateExecRequest {
	in = proto.CloneOf(in)
	in.ExecId, in.RequestKey = idAndKey(in.GetExecId(), in.GetRequestKey())
	return in
}

// idAndKey sets what is missing. The daemon gives the same id to a request with only a
// key.
func idAndKey(id, key string) (string, string) {
	switch {
	case id == "" && key == "":
		id = ids.New()
	case id == "":
		return ids.OfKey(key), key
	}
	if key == "" {
		key = id
	}
	return id, key
}
