package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// verb runs one engine call in a slot and with a timeout, if the engine is the install's.
func (l *Loop) verb(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	return l.inSlot(ctx, l.slots, timeout, call)
}

// inSlot waits for a free slot and runs the call in it.
func (l *Loop) inSlot(ctx context.Context, slots chan struct{}, timeout time.Duration, call func(context.Context) error) error {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-slots }()
	if err := l.sameEngine(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx)
}

// stopContainer stops a container with a grace.
func (l *Loop) stopContainer(ctx context.Context, id string, grace time.Duration) error {
	return l.inSlot(ctx, l.stops, verbTimeout, func(ctx context.Context) error {
		return l.engine.StopContainer(ctx, id, grace)
	})
}

// look fills the observation from the newest full look if that is new enough for this
// round. Otherwise it looks at this sandbox alone.
func (l *Loop) look(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, o *machine.Observation) error {
	inv, fresh := l.shared(sb.ID, w.since)
	if !fresh {
		var err error
		if inv, err = l.sandboxObjects(ctx, sb); err != nil {
			return err
		}
	}
	inv = ours(inv, sb.Nonce)
	if err := l.observe(ctx, sb.ID, inv, o); err != nil {
		w.since = l.now() // a full look that began before this may have seen less than what was inspected
		return err
	}
	o.Looked, o.Unfenced = true, l.unfenced(sb, inv.Networks)
	w.network = networkTrouble(inv, o.Primary)
	if sb.State == machine.Pending && o.Primary != nil && o.Primary.State == runtime.StateRunning && w.startedAt.IsZero() {
		w.startedAt = l.now() // started by an earlier daemon: its supervisor gets its time from now on
	}
	now := l.now()
	w.since = now // a full look that began before this may have seen less
	l.mu.Lock()
	w.looked, w.seen = now, digestOf(inv)
	l.mu.Unlock()
	return nil
}

// findStray looks for the first process of a primary that the engine does not have, or says
// has ended: an engine that lost its data, or one that was adopted in place of another, does
// not know of processes that run on. Their commands are not lost.
func (l *Loop) findStray(sandboxID string, o *machine.Observation) {
	o.Stray = (o.Primary == nil || ended(*o.Primary)) && l.links.Lives(sandboxID)
	if !o.Stray {
		return
	}
	var c runtime.Container
	if o.Primary != nil {
		c = *o.Primary
	}
	c.State = runtime.StateRunning
	o.Primary = &c
}

// ours removes objects with our install's label but not the sandbox's nonce.
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
	for _, v := range inv.Volumes {
		if v.Nonce == nonce {
			kept.Volumes = append(kept.Volumes, v)
		}
	}
	return kept
}

// progressEvery bounds the number of progress events of a pull. During a long pull they
// get rarer: each comes after the pull has taken a tenth longer.
const progressEvery = 2 * time.Second

// pullProgress reports the progress of a pull for a service. An empty name means the
// primary.
func (l *Loop) pullProgress(ctx context.Context, sb ledger.Sandbox, service string) func(runtime.PullProgress) {
	var first, last time.Time
	if service != "" {
		service = "service " + service + ": "
	}
	return func(p runtime.PullProgress) {
		now := l.now()
		if first.IsZero() {
			first = now
		}
		if now.Sub(last) >= max(progressEvery, now.Sub(first)/10) {
			last = now
			l.emitPhase(ctx, sb, &agboxv1.SandboxPhaseDetails{
				Phase: "image", Reason: service + pullSentence(p), BytesDone: uint64(p.BytesDone), BytesTotal: uint64(p.BytesTotal),
			})
		}
	}
}

// announce reports the current step to watchers. Losing it is harmless.
func (l *Loop) announce(ctx context.Context, sb ledger.Sandbox, phase, reason string) {
	l.emitPhase(ctx, sb, &agboxv1.SandboxPhaseDetails{Phase: phase, Reason: reason})
}

func (l *Loop) emitPhase(ctx context.Context, sb ledger.Sandbox, details *agboxv1.SandboxPhaseDetails) {
	_, err := l.ledger.Emit(ctx, sb.Record, &agboxv1.SandboxEvent{
		EventType: agboxv1.EventType_SANDBOX_PREPARING,
		Details:   &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: details},
	})
	if err != nil {
		l.log.Debug("progress could not be recorded", "sandbox_id", sb.ID, "error", err)
	}
}

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
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		err := l.links.Connect(ctx, sb.ID)
		if !errors.Is(err, fs.ErrNotExist) {
			w.unseen = time.Time{}
		} else if w.unseen.IsZero() {
			w.unseen = l.now()
		}
		if err == nil && sb.Copied {
			// An earlier daemon, or life of the supervisor, may have ended before this.
			err = l.execs.Release(ctx, sb.ID)
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
	if err == nil || !l.unprivileged {
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

// spareNetworks returns the networks of a sandbox that none of its containers was made
// for. It returns none if the sandbox has no container that was made for one of them.
func spareNetworks(inv runtime.Inventory) []runtime.Network {
	spare := slices.DeleteFunc(slices.Clone(inv.Networks), func(n runtime.Network) bool {
		return slices.ContainsFunc(inv.Containers, func(c runtime.Container) bool { return c.NetworkID == n.ID })
	})
	if len(spare) == len(inv.Networks) {
		return nil
	}
	return spare
}

// spareContainers are those that were made for one step: image readers and reclaimers. A
// killed daemon, or an engine that executes a request late, leaves one behind.
func spareContainers(inv runtime.Inventory) []runtime.Container {
	return slices.DeleteFunc(slices.Clone(inv.Containers), func(c runtime.Container) bool {
		return c.Role != runtime.RoleImageReader && c.Role != runtime.RoleReclaimer
	})
}

// hasSpares reports whether there is something that removeSpares removes.
func hasSpares(inv runtime.Inventory) bool {
	return len(spareNetworks(inv)) > 0 || len(spareContainers(inv)) > 0
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

// removeEach removes all objects of a kind concurrently.
func removeEach[T any](ctx context.Context, l *Loop, remove func(context.Context, string) error, all []T, id func(T) string) error {
	ids := make([]string, len(all))
	for i, object := range all {
		ids[i] = id(object)
	}
	return l.each(ids, func(id string) error {
		return l.verb(ctx, verbTimeout, func(ctx context.Context) error { return remove(ctx, id) })
	})
}

// runHook runs the exec of a hook in a shell in the primary.
func (l *Loop) runHook(ctx context.Context, sb ledger.Sandbox, hook machine.Hook) error {
	commands := sb.Spec.GetPostCreate()
	if hook.Service != "" {
		commands = serviceSpec(sb, hook.Service).GetPostStartOnPrimary()
	}
	return l.execs.RunHook(ctx, &agboxv1.CreateExecRequest{
		SandboxId: sb.ID, ExecId: hookExecID(sb, hook), Command: []string{"sh", "-c", commands[hook.Index]},
		// A hook in what a program has copied has no more rights than that program.
		User: sb.Spec.GetDerived().GetUser(),
	}, hook)
}

// hookExecID derives the exec id of a hook. A daemon that crashed between two steps
// derives the same id again, and an exec id is run at most once.
func hookExecID(sb ledger.Sandbox, hook machine.Hook) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d\x00%d", sb.ID, sb.Nonce, hook.Service, hook.Start, hook.Index))
	mark := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
	if hook.Service == "" {
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
