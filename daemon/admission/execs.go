package admission

import (
	"context"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	"github.com/agbox/agbox/proto/agbox/caller"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// CheckCommand refuses a command that the kernel would refuse.
func CheckCommand(req *agboxv1.CreateExecRequest) error {
	env := make([]string, 0, len(req.GetEnvOverrides()))
	for key, value := range req.GetEnvOverrides() {
		env = append(env, key+"="+value)
	}
	if err := rpc.CheckArguments(req.GetCommand(), env); err != nil {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_COMMAND_TOO_LONG,
			"The command cannot be started: %v. Pass the data in a file instead.", err)
	}
	if err := checkSecrets(req); err != nil {
		return err
	}
	if req.GetCommand()[0] == "" {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "The command is empty: name a program to run.")
	}
	return nil
}

// checkSecrets refuses marks of variables that the request does not set, and values that
// only stand for values.
func checkSecrets(req *agboxv1.CreateExecRequest) error {
	envs, marked := req.GetEnvOverrides(), req.GetSecretEnvs()
	for _, name := range marked {
		if _, set := envs[name]; !set {
			return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"secret_envs names %.80q, which env_overrides does not set: set it, or remove the name.", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(envs)) {
		if envs[name] == secrets.Placeholder && secrets.Is(name, marked) {
			return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"The variable %.80q has the value %q, which agbox shows instead of a secret value: give the value itself.", name, secrets.Placeholder)
		}
	}
	return nil
}

// IdentifySandbox returns the id of the sandbox that a request creates.
func IdentifySandbox(ctx context.Context, req *agboxv1.CreateSandboxRequest) string {
	if req.GetSandboxId() != "" {
		return req.GetSandboxId()
	}
	return newID(ctx, req.GetRequestKey())
}

// newID returns the id for a request that has none.
func newID(ctx context.Context, requestKey string) string {
	switch {
	case requestKey != "":
		return ids.OfKey(requestKey)
	case caller.Of(ctx).Published:
		return ids.NewUUID()
	}
	return ids.New()
}

// IdentifyExec returns the request with the exact sandbox id, and with an exec id if
// it has none. The ids of the sandbox's own command are refused.
func IdentifyExec(ctx context.Context, req *agboxv1.CreateExecRequest, sandboxID string) (*agboxv1.CreateExecRequest, error) {
	identified := proto.CloneOf(req)
	identified.SandboxId = sandboxID
	identified.ShowSecrets = req.GetShowSecrets() || caller.Of(ctx).Published
	if identified.GetExecId() == "" {
		identified.ExecId = newID(ctx, req.GetRequestKey())
	}
	if ids.IsMain(sandboxID, identified.GetExecId()) {
		return nil, fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS,
			"The exec id %q is that of the sandbox's own command; choose another or leave it out.", identified.GetExecId()).
			With("exec_id", identified.GetExecId())
	}
	return identified, nil
}
