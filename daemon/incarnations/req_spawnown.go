package incarnations

import (
	"cmp"
	"context"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/secrets"
)

// ownSandbox gives a new child a sandbox of its own, made from that of its parent. The values
// of secret variables go over too, because the parent's program has them as well.
func (r *Runner) ownSandbox(ctx context.Context, a ledger.Agent, rules agents.SpawnRules, f spawnFields, n *ledger.NewAgent) error {
	if rules.Sandboxes == 0 {
		return fault.New(errdefs.ErrPermissionDenied, agboxv1.ErrorReason_SPAWN_NOT_ALLOWED,
			"Agent %s may give its children no sandboxes of their own: write may_spawn: {sandboxes: 8} into its description, or spawn the child with the sandbox %q. Then the border of a stack orders and does not protect.",
			a.ID, sharedSandbox).With("agent_id", a.ID)
	}
	sb, exists := r.ledger.Sandbox(n.SandboxID)
	if !exists {
		return parentRemoved()
	}
	sb, err := r.ledger.Reveal(ctx, sb)
	if err != nil {
		return err
	}
	n.Own, err = derivation{
		parent: sb.Spec, fields: f.sandboxFields, branch: cmp.Or(f.Name, n.ID),
		from: &agboxv1.DerivedSpec{Parent: a.ID, ParentSandbox: n.SandboxID, Tree: r.ledger.TreeOf(a), User: a.Spec.GetUser()},
	}.spec()
	n.SandboxID, n.MaxSandboxes = "agent-"+n.ID, rules.Sandboxes
	n.Spec.CleanupAfter = a.Spec.GetCleanupAfter()
	if without := n.Spec.GetRetry().GetReduced(); without != nil {
		without.WithoutServices = nil // the services stay with the parent
	}
	return err
}

func parentRemoved() error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND, "The sandbox of the parent is being removed: spawn the agent from another one.")
}

// ownDiffers reports whether the sandbox of a child that exists was made by another request. One
// that is gone tells nothing, and neither does one that was adopted after the loss of the
// database: its spec is made of its container, which does not say what was asked for.
func (r *Runner) ownDiffers(known ledger.Agent, n ledger.NewAgent) bool {
	sb, exists := r.ledger.Sandbox(known.SandboxID)
	if n.Own == nil || !exists || sb.Spec.GetDerived() == nil {
		return false
	}
	asked := proto.CloneOf(n.Own)
	asked.Derived = proto.CloneOf(sb.Spec.GetDerived()) // the rest of it follows from the parent
	asked.Derived.Workspace = n.Own.GetDerived().GetWorkspace()
	shown, _ := secrets.HideSpec(asked)
	return !proto.Equal(sb.Spec, shown)
}

// spawnedChild is the answer to a request for a child.
type spawnedChild struct {
	child
	// Sandbox is new or shared, and SandboxID is the sandbox in which the child runs.
	Sandbox   string `json:"sandbox"`
	SandboxID string `json:"sandbox_id"`
	// Border says of the root of a stack what its border does, and Notice what that means.
	Border string `json:"border,omitempty"`
	Notice string `json:"notice,omitempty"`
}

// answerSpawn answers once the workspace is copied that the child gets: what the parent changes
// after that is its own. The end of a sandbox that cannot be made is told as that of the child.
func (r *Runner) answerSpawn(made ledger.Agent) (any, bool, error) {
	answer := spawnedChild{child: childOf(made), Sandbox: sharedSandbox, SandboxID: made.SandboxID}
	switch made.BorderOf() {
	case agboxv1.StackBorder_STACK_BORDER_ORDERS:
		answer.Border, answer.Notice = "orders", sharedNotice
	case agboxv1.StackBorder_STACK_BORDER_PROTECTS:
		answer.Border = "protects"
	}
	if !made.Owned {
		return answer, false, nil
	}
	answer.Sandbox = ownSandbox
	sb, exists := r.ledger.Sandbox(made.SandboxID)
	copying := exists && !made.Over() && sb.Want == machine.WantRunning && sb.State == machine.Pending &&
		!sb.Copied && !sb.WasReady && sb.Spec.GetDerived().GetWorkspace() != ""
	return answer, copying, nil
}

// sharedNotice is about a stack that shares a container with others.
const sharedNotice = "The border of this stack orders and does not protect: agents on both sides share a container, and can reach each other's files and processes. The sandbox \"new\" protects."
