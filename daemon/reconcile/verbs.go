package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

func (l *Loop) start(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, o *machine.Observation) error {
	if err := l.allowed(sb.Spec); err != nil {
		return err
	}
	l.announce(ctx, sb, "start", "")
	// The daemon may not have noticed yet that the link to the previous life is broken.
	// An exec sent over it would be lost.
	l.links.Drop(sb.ID)
	if err := l.tidy(ctx, sb); err != nil {
		return err
	}
	if err := l.restoreGuestFiles(ctx, sb, o.Primary.ID); err != nil {
		return err
	}
	if err := l.numberMain(ctx, sb); err != nil {
		return err
	}
	release, err := l.pinMounts(ctx, sb, o.Primary.ID)
	if err != nil {
		return err
	}
	defer release()
	if err := l.share(ctx, sb.ID); err != nil {
		return err
	}
	if err := l.startPrimary(ctx, o.Primary.ID); err != nil {
		return err
	}
	w.startedAt, w.since = l.now(), l.now()
	primary := *o.Primary
	primary.State = runtime.StateRunning
	o.Primary = &primary
	l.remember(sb, primary)
	return nil
}

// connectPause is the pause before another attempt to reach a starting supervisor.
const connectPause = 5 * time.Millisecond

// socketPatience is how long the socket of a READY sandbox may be missing. A supervisor
// that starts replaces the socket of the one before, and one that stops removes its own
// up to a second before the container ends.
const socketPatience = 3 * time.Second

// connect connects to the supervisor. It gives one that has just been started time to
// open its socket, unless an event reports that the container has changed meanwhile.
func (l *Loop) connect(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, o *machine.Observation) error {
	round := ctx
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		err := l.links.Connect(ctx, sb.ID)
		linked := err == nil
		if !errors.Is(err, fs.ErrNotExist) {
			w.unseen = time.Time{}
		} else if w.unseen.IsZero() {
			w.unseen = l.now()
		}
		if err == nil && sb.Taken {
			err = l.configure(round, w, sb, o) // each life of the supervisor is told
		}
		if linked && err != nil && !l.links.Connected(sb.ID) {
			// It is held, and the next one repeats it: nothing may run without its environment.
			l.links.Discard(sb.ID)
			if sb.State == machine.Pending {
				return err
			}
			l.log.Warn("supervisor cannot be told whose its sandbox is", "sandbox_id", sb.ID, "error", err)
			o.ConnectFailed, w.unlinked = true, err
			return nil
		}
		if err == nil && sb.Copied {
			// An earlier daemon, or life of the supervisor, may have ended before this.
			err = l.execs.Release(round, sb.ID)
		}
		switch {
		case err == nil:
			return nil
		case tampered(err) && sb.State == machine.Pending:
			return err
		case sb.State != machine.Pending && errors.Is(err, fs.ErrNotExist) && l.now().Sub(w.unseen) < socketPatience:
		case sb.State != machine.Pending:
			l.log.Info("supervisor cannot be reached", "sandbox_id", sb.ID, "error", err)
			o.ConnectFailed, w.unlinked = true, l.unlinked(sb.ID, err)
			return nil
		}
		if o.Primary != nil && l.inDoubt(o.Primary.ID) {
			o.Looked = false
			return nil
		}
		select {
		case <-time.After(connectPause):
		case <-ctx.Done():
			o.Looked = false // the container may have exited
			return nil
		}
	}
}

// unlinked returns the error for a supervisor that cannot be linked until somebody repairs
// something; nil if a later attempt may succeed.
func (l *Loop) unlinked(sandboxID string, err error) error {
	switch {
	case tampered(err):
		return err
	case errors.Is(err, fs.ErrNotExist) && l.guestFilesRemoved(sandboxID):
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE,
			"Files in %s were removed, so the daemon cannot reach sandbox %s: stop and start the sandbox, which makes them again.",
			l.paths.Guest(sandboxID), sandboxID)
	}
	return nil
}

// guestFilesRemoved reports whether somebody has removed what a link needs. Only the socket is
// also missing while the container is started again behind our back: then the supervisor that
// made it has ended.
func (l *Loop) guestFilesRemoved(sandboxID string) bool {
	for _, file := range []string{l.paths.GuestBoot(sandboxID), l.paths.GuestLink(sandboxID)} {
		if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return l.links.Lives(sandboxID)
}

func tampered(err error) bool {
	return fault.ReasonOf(err) == agboxv1.ErrorReason_SUPERVISOR_TAMPERED
}

func (l *Loop) stop(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, o *machine.Observation) error {
	grace := stopGrace
	if sb.Want == machine.WantDeleted {
		grace = removeGrace
	}
	if sb.StopReason != "" {
		grace = 0 // every second makes it worse
	}
	var err error
	if o.Stray {
		err = l.links.End(ctx, sb.ID, grace)
	} else {
		err = l.stopContainer(ctx, o.Primary.ID, grace)
	}
	o.Looked, w.since = false, l.now()
	if err == nil {
		l.cleaned(sb.ID, l.tidy(ctx, sb))
	}
	return err
}

// tidy removes from the folders of a sandbox what does not belong to agbox if there is too
// much. Its primary does not run.
func (l *Loop) tidy(ctx context.Context, sb ledger.Sandbox) error {
	err := l.room.Tidy(ctx, sb.ID)
	if err == nil || !l.opts.Unprivileged {
		return err
	}
	inv, failed := l.sandboxObjects(ctx, sb)
	if failed == nil {
		failed = l.reclaim(ctx, sb, inv)
	}
	if failed != nil {
		return errors.Join(err, failed)
	}
	return l.room.Tidy(ctx, sb.ID)
}

// cleaned logs that something was left in the folders of a sandbox. That prevents neither
// its end nor its removal.
func (l *Loop) cleaned(sandboxID string, err error) {
	if err != nil {
		l.log.Warn("the folders of a sandbox cannot be cleaned", "sandbox_id", sandboxID, "error", err)
	}
}

// kill ends all processes of a sandbox at once.
func (l *Loop) kill(ctx context.Context, sb ledger.Sandbox, services []string, o *machine.Observation) error {
	err := l.each(append(services, ""), func(name string) error {
		if name == "" {
			return l.killPrimary(ctx, sb, *o)
		}
		return l.stopContainer(ctx, o.Services[name].Container.ID, 0)
	})
	if err != nil || o.Stray {
		o.Looked = false
		return err
	}
	// The engine may say for a while that they run.
	if o.Primary != nil {
		o.Primary = hasEnded(o.Primary)
	}
	for _, name := range services {
		seen := o.Services[name]
		seen.Container = hasEnded(seen.Container)
		o.Services[name] = seen
	}
	return nil
}

// killPrimary ends the first process of the primary where the daemon can, and with it all others:
// the engine takes longer. It must do that if ports are published, because it frees them when it has
// seen the end.
func (l *Loop) killPrimary(ctx context.Context, sb ledger.Sandbox, o machine.Observation) error {
	if o.Primary == nil || ended(*o.Primary) {
		return nil
	}
	if o.Primary.State != runtime.StatePaused && len(sb.Spec.GetPorts()) == 0 && l.links.Lives(sb.ID) {
		brief, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		if err := l.links.End(brief, sb.ID, 0); err == nil || o.Stray {
			return err
		}
	}
	return l.stopContainer(ctx, o.Primary.ID, 0)
}

func hasEnded(c *runtime.Container) *runtime.Container {
	over := *c
	over.State = runtime.StateExited
	return &over
}

// remove removes containers, then networks and volumes, then the files for the
// supervisor. The logs stay, because a user may still read them. Nothing else stays, and
// nothing that the daemon's user could not remove later.
func (l *Loop) remove(ctx context.Context, sb ledger.Sandbox, o *machine.Observation) error {
	inv, err := l.sandboxObjects(ctx, sb)
	if err != nil {
		return err
	}
	left := l.reclaim(ctx, sb, inv)
	if left != nil && retryable(left) {
		return left
	}
	err = removeEach(ctx, l, l.engine.RemoveContainer, inv.Containers, func(c runtime.Container) string { return c.ID })
	if err == nil {
		err = l.links.End(ctx, sb.ID, removeGrace) // if the engine did not have the primary
	}
	if err != nil {
		return err
	}
	err = errors.Join(left,
		removeEach(ctx, l, l.engine.RemoveNetwork, inv.Networks, func(n runtime.Network) string { return n.ID }),
		removeEach(ctx, l, l.engine.RemoveVolume, inv.Volumes, func(v runtime.Volume) string { return v.Name }))
	if err != nil {
		return err
	}
	l.trimFence()
	if err := l.removeGuestFiles(ctx, sb.ID); err != nil {
		return err
	}
	l.cleaned(sb.ID, l.room.Clear(ctx, sb.ID))
	o.Looked, o.Leftovers, o.Primary, o.Services = true, false, nil, nil
	return nil
}

// removeSpares removes the current spareContainers and spareNetworks.
func (l *Loop) removeSpares(ctx context.Context, sb ledger.Sandbox, o *machine.Observation) error {
	inv, err := l.sandboxObjects(ctx, sb)
	if err != nil {
		return err
	}
	err = removeEach(ctx, l, l.engine.RemoveContainer, spareContainers(inv), func(c runtime.Container) string { return c.ID })
	if err != nil {
		return err
	}
	o.Spares = false
	return removeEach(ctx, l, l.engine.RemoveNetwork, spareNetworks(inv), func(n runtime.Network) string { return n.ID })
}

// runHook runs the exec of a hook in a shell in the primary.
func (l *Loop) runHook(ctx context.Context, sb ledger.Sandbox, hook machine.Hook) error {
	req := &agboxv1.CreateExecRequest{
		SandboxId: sb.ID, ExecId: hookExecID(sb, hook),
		// A hook in what a program has copied has no more rights than that program.
		User: sb.Spec.GetDerived().GetUser(),
	}
	commands := sb.Spec.GetPostCreate()
	switch {
	case hook.Prepare: // where and as whom, nobody may know yet
		commands, req.User, req.Cwd = sb.Spec.GetPrepare(), "0", "/"
	case hook.Service != "":
		commands = serviceSpec(sb, hook.Service).GetPostStartOnPrimary()
	}
	req.Command = []string{"sh", "-c", commands[hook.Index]}
	return l.execs.RunHook(ctx, req, hook)
}

// hookExecID derives the exec id of a hook. A daemon that crashed between two steps
// derives the same id again, and an exec id is run at most once.
func hookExecID(sb ledger.Sandbox, hook machine.Hook) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d\x00%d", sb.ID, sb.Nonce, hook.Service, hook.Start, hook.Index))
	mark := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
	switch {
	case hook.Prepare:
		return fmt.Sprintf("prepare-%d-%s", hook.Index+1, mark)
	case hook.Service == "":
		return fmt.Sprintf("post-create-%d-%s", hook.Index+1, mark)
	}
	return fmt.Sprintf("hook-%s-%d-%d-%s", hook.Service[:min(len(hook.Service), 20)], hook.Start, hook.Index+1, mark)
}

// watchHooks enqueues the sandbox when a hook has ended.
func (l *Loop) watchHooks(w *sandboxWork, sb ledger.Sandbox) {
	for id, exec := range sb.Execs {
		if exec.Hook == nil || w.hooks[id] {
			continue
		}
		if w.hooks == nil {
			w.hooks = make(map[string]bool)
		}
		w.hooks[id] = true
		l.mu.Lock()
		life := l.ctx
		l.mu.Unlock()
		l.wg.Go(func() {
			select {
			case <-l.ledger.ExecDone(id):
				l.Enqueue(w.id)
			case <-life.Done():
			}
		})
	}
}
