package reconcile

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// sandboxOfParent is the sandbox in which the agent runs that asked for a sandbox from inside.
// It may have been made again since. Without a record of the agent it is the one of the request.
func (l *Loop) sandboxOfParent(from *agboxv1.DerivedSpec) (ledger.Sandbox, error) {
	parent, known := l.ledger.Agent(from.GetParent())
	where := from.GetParentSandbox()
	if known {
		where = parent.SandboxID
	}
	sb, exists := l.ledger.Sandbox(where)
	if exists && sb.Want != machine.WantDeleted {
		return sb, nil
	}
	if known && exists && !parent.Over() {
		return ledger.Sandbox{}, noContainerYet(from) // its owner may have moved a moment ago, and takes it along
	}
	return ledger.Sandbox{}, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_NOT_FOUND,
		"The sandbox was to have the image, and perhaps the workspace, of agent %s, whose sandbox is removed: spawn the agent from another one.", from.GetParent()).With("agent_id", from.GetParent())
}

// imageOfParent returns the image of the container of the parent: not what has its name by now,
// and nothing is pulled or built because a program in a sandbox wants it.
func (l *Loop) imageOfParent(ctx context.Context, from *agboxv1.DerivedSpec, want runtime.ImageRequest) (runtime.Image, error) {
	parent, err := l.sandboxOfParent(from)
	if err != nil {
		return runtime.Image{}, err
	}
	inv, err := l.engine.SandboxInventory(ctx, l.opts.InstallID, parent.ID)
	if err != nil {
		return runtime.Image{}, err
	}
	made, err := runtime.Description{}, error(errdefs.ErrNotFound)
	for _, c := range ours(inv, parent.Nonce).Containers {
		if c.Role == runtime.RolePrimary {
			made, err = l.engine.DescribeContainer(ctx, c.ID)
		}
	}
	if errdefs.IsNotFound(err) {
		return runtime.Image{}, l.noContainer(from, parent)
	}
	if err != nil {
		return runtime.Image{}, err
	}
	want.Ref, want.Policy = made.ImageID, runtime.PullNever
	return l.engine.EnsureImage(ctx, want, nil)
}

// noContainer says what follows if the parent has no container in the sandbox that was looked at.
// One that gets no other container must not be waited for: its program may wait for the answer to
// its request, with processes of which the engine does not know.
func (l *Loop) noContainer(from *agboxv1.DerivedSpec, looked ledger.Sandbox) error {
	stray := looked.State == machine.Ready && l.links.Lives(looked.ID)
	kept := slices.ContainsFunc(l.ledger.LivingIn(looked.ID), moves)
	now, err := l.sandboxOfParent(from) // only now: if an owner has moved, the sandbox is another one, or is to go
	switch {
	case err != nil:
		return err
	case stray, now.Missing() && !kept:
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_UNREACHABLE,
			"The container of agent %s, whose image this sandbox gets, is gone: spawn the agent with the sandbox \"shared\", or from an agent in another sandbox.", from.GetParent()).With("agent_id", from.GetParent())
	}
	return noContainerYet(from)
}

func noContainerYet(from *agboxv1.DerivedSpec) error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE,
		"The container of agent %s, whose image this sandbox gets, is not there; it is tried again.", from.GetParent()).With("agent_id", from.GetParent())
}

// copiesOf returns what is copied into a new sandbox, and from where.
func (l *Loop) copiesOf(sb ledger.Sandbox) ([]hostfiles.Copy, error) {
	copies := hostfiles.Copies(sb.Spec)
	for i := range copies {
		if copies[i].FromAgent == "" {
			continue
		}
		from, err := l.sandboxOfParent(sb.Spec.GetDerived())
		if err != nil {
			return nil, err
		}
		copies[i].From = from.ID
	}
	return copies, nil
}

// untold returns the error that a program may see which has asked for a sandbox: what the paths
// of the host are by now is not its business.
func (l *Loop) untold(sb ledger.Sandbox, err error) error {
	f := fault.Of(err)
	if sb.Spec.GetDerived() == nil || f == nil {
		return err
	}
	l.log.Warn("what the sandbox of a child was to mount cannot be mounted", "sandbox_id", sb.ID, "error", err)
	return fault.New(f.Class, f.Reason, "What it was to mount cannot be mounted by now: the log of the daemon says why.").Because(err)
}

// enqueueSpawners schedules the agents whose requests for agents in a sandbox may be answered,
// because the workspace is copied.
func (l *Loop) enqueueSpawners(sb ledger.Sandbox) {
	if sb.Spec.GetDerived() == nil {
		return
	}
	for _, a := range l.ledger.AgentsIn(sb.ID) {
		l.EnqueueAgent(a.Parent)
	}
}

// moves reports whether an agent gets a new sandbox, once it is to go on, if the container of its
// own is gone.
func moves(a ledger.Agent) bool { return a.Owned && a.Settled && a.Kill == nil }
