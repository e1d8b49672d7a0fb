package reconcile

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
)

// slot waits for a place at the engine and returns the function that frees it.
func (l *Loop) slot(ctx context.Context) (func(), error) {
	select {
	case l.slots <- struct{}{}:
		return func() { <-l.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// verb runs one engine call with a place and a deadline.
func (l *Loop) verb(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	release, err := l.slot(ctx)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx)
}

// look fills the observation from the newest full look, if it was begun after
// all that this round must see, else from a look at this sandbox alone.
func (l *Loop) look(ctx context.Context, w *worker, sb ledger.Sandbox, o *machine.Observation) error {
	inv, fresh := l.shared(sb.ID, w.since)
	if !fresh {
		err := l.verb(ctx, lookTimeout, func(ctx context.Context) (err error) {
			inv, err = l.Engine.SandboxInventory(ctx, l.InstallID, sb.ID)
			return err
		})
		if err != nil {
			return err
		}
	}
	inv = ours(inv, sb.Nonce)
	o.Looked = true
	o.Leftovers = len(inv.Containers)+len(inv.Networks) > 0
	o.Primary = nil
	for _, c := range inv.Containers {
		if c.Role == runtime.RolePrimary {
			o.Primary = &c
		}
	}
	if o.Primary != nil && o.Primary.State != runtime.StateRunning {
		if err := l.inspect(ctx, o); err != nil {
			return err
		}
	}
	w.network = networkTrouble(inv, o.Primary)
	if sb.State == machine.Pending && o.Primary != nil && o.Primary.State == runtime.StateRunning && w.startedAt.IsZero() {
		w.startedAt = l.Now() // started by an earlier daemon: its supervisor gets its time from now on
	}
	l.mu.Lock()
	w.looked, w.seen = l.Now(), digestOf(inv)
	l.mu.Unlock()
	return nil
}

// inspect looks closer where the list does not say why the primary is down.
func (l *Loop) inspect(ctx context.Context, o *machine.Observation) error {
	return l.verb(ctx, lookTimeout, func(ctx context.Context) error {
		c, err := l.Engine.InspectContainer(ctx, o.Primary.ID)
		if err == nil {
			o.Primary = &c
			o.EngineRestarted = l.endedWithEngine(&c)
		}
		return err
	})
}

// ours drops what carries our install's label but not the sandbox's nonce.
func ours(inv runtime.Inventory, nonce string) runtime.Inventory {
	var kept runtime.Inventory
	for _, c := range inv.Containers {
		if c.Nonce == nonce {
			kept.Containers = append(kept.Containers, c)
		}
	}
	for _, n := range inv.Networks {
		if n.Nonce == nonce {
			kept.Networks = append(kept.Networks, n)
		}
	}
	return kept
}

// prepare has image, network and container. Image and network do not need each
// other and are made side by side. Only the pull heeds a changed wish, by a
// context of its own: a call that makes something is waited for, so that what it
// made is seen afterwards.
func (l *Loop) prepare(ctx, pull context.Context, sb ledger.Sandbox, o *machine.Observation) error {
	var image runtime.Image
	var network runtime.Network
	group := new(errgroup.Group)
	group.Go(func() error {
		pull, cancel := context.WithTimeout(pull, pullTimeout)
		defer cancel()
		var err error
		image, err = l.Engine.EnsureImage(pull, sb.Spec.GetImage(), l.pullProgress(ctx, sb))
		return err
	})
	group.Go(func() error {
		return l.verb(ctx, verbTimeout, func(ctx context.Context) (err error) {
			network, err = l.Engine.EnsureNetwork(ctx, l.networkSpec(sb))
			return err
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := l.writeGuestFiles(sb, image); err != nil {
		return err
	}
	return l.verb(ctx, verbTimeout, func(ctx context.Context) error {
		id, err := l.Engine.EnsureContainer(ctx, l.containerSpec(sb, image, network))
		if err == nil {
			o.Primary = &runtime.Container{ID: id, State: runtime.StateCreated}
			o.Looked, o.Leftovers = true, true
		}
		return err
	})
}

// progressEvery keeps a long pull from filling the event stream.
const progressEvery = 2 * time.Second

func (l *Loop) pullProgress(ctx context.Context, sb ledger.Sandbox) func(runtime.PullProgress) {
	var last time.Time
	return func(p runtime.PullProgress) {
		if now := l.Now(); now.Sub(last) >= progressEvery {
			last = now
			l.announce(ctx, sb, "pull", pullSentence(p))
		}
	}
}

// announce tells watchers what is being done. Losing it costs nothing.
func (l *Loop) announce(ctx context.Context, sb ledger.Sandbox, phase, reason string) {
	_, err := l.Ledger.Emit(ctx, sb.Record, &agboxv1.SandboxEvent{
		EventType: agboxv1.EventType_SANDBOX_PREPARING,
		Details: &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{
			Phase: phase, Reason: reason,
		}},
	})
	if err != nil {
		l.Log.Debug("progress could not be recorded", "sandbox_id", sb.ID, "error", err)
	}
}

func (l *Loop) start(ctx context.Context, w *worker, sb ledger.Sandbox, o *machine.Observation) error {
	l.announce(ctx, sb, "start", "")
	// A link to the life before may not have been seen to break yet; an exec that
	// was given to it would be lost.
	l.Guests.Drop(sb.ID)
	err := l.verb(ctx, verbTimeout, func(ctx context.Context) error {
		return l.Engine.StartContainer(ctx, o.Primary.ID)
	})
	if err != nil {
		return err
	}
	w.startedAt, w.since = l.Now(), l.Now()
	primary := *o.Primary
	primary.State = runtime.StateRunning
	o.Primary = &primary
	l.remember(sb, primary)
	return nil
}

// connectPause is how soon a supervisor that is just starting is tried again.
const connectPause = 5 * time.Millisecond

// connect reaches the supervisor. One that has just been started is given the
// time to open its socket, with a look at the container now and then.
func (l *Loop) connect(ctx context.Context, w *worker, sb ledger.Sandbox, o *machine.Observation) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		err := l.Guests.Connect(ctx, sb.ID)
		switch {
		case err == nil:
			return nil
		case tampered(err) && sb.State == machine.Pending:
			return err
		case sb.State != machine.Pending:
			l.Log.Info("supervisor cannot be reached", "sandbox_id", sb.ID, "error", err)
			o.ConnectFailed, w.tampered = true, ""
			if tampered(err) {
				w.tampered = fault.Of(err).Message
			}
			return nil
		}
		select {
		case <-time.After(connectPause):
		case <-ctx.Done():
			o.Looked = false // perhaps the container has died
			return nil
		}
	}
}

func tampered(err error) bool {
	return fault.ReasonOf(err) == agboxv1.ErrorReason_SUPERVISOR_TAMPERED
}

func (l *Loop) stop(ctx context.Context, w *worker, sb ledger.Sandbox, o *machine.Observation) error {
	grace := stopGrace
	if sb.Want == machine.WantDeleted {
		grace = removeGrace
	}
	err := l.verb(ctx, verbTimeout, func(ctx context.Context) error {
		return l.Engine.StopContainer(ctx, o.Primary.ID, grace)
	})
	o.Looked, w.since = false, l.Now()
	return err
}

// remove removes containers, then networks, then what the supervisor was given.
// The logs stay: a user may still ask for them.
func (l *Loop) remove(ctx context.Context, sb ledger.Sandbox, o *machine.Observation) error {
	var inv runtime.Inventory
	err := l.verb(ctx, lookTimeout, func(ctx context.Context) (err error) {
		inv, err = l.Engine.SandboxInventory(ctx, l.InstallID, sb.ID)
		return err
	})
	if err != nil {
		return err
	}
	inv = ours(inv, sb.Nonce)
	for _, c := range inv.Containers {
		err = errors.Join(err, l.verb(ctx, verbTimeout, func(ctx context.Context) error {
			return l.Engine.RemoveContainer(ctx, c.ID)
		}))
	}
	for _, n := range inv.Networks {
		err = errors.Join(err, l.verb(ctx, verbTimeout, func(ctx context.Context) error {
			return l.Engine.RemoveNetwork(ctx, n.ID)
		}))
	}
	if err != nil {
		return err
	}
	if err := os.RemoveAll(l.Paths.Guest(sb.ID)); err != nil {
		return err
	}
	o.Looked, o.Leftovers, o.Primary = true, false, nil
	return nil
}
