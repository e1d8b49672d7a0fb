package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// sandbox judges one record and lists its objects in the engine.
func (x *examination) sandbox(ctx context.Context, sb ledger.Sandbox) {
	inv := of(x.inv, sb)
	f := x.add(&agboxv1.DoctorFinding{
		Action: leave, Kind: record, Name: sb.Name, Id: sb.ID, SandboxId: sb.ID,
	})
	x.judge(ctx, f, sb, inv)
	for _, c := range inv.Containers {
		x.add(&agboxv1.DoctorFinding{
			Action: leave, Kind: container, Name: c.Name, Id: c.ID, SandboxId: sb.ID,
			Why: containerSentence(c),
		})
	}
	for _, v := range inv.Volumes {
		x.add(&agboxv1.DoctorFinding{
			Action: leave, Kind: volume, Name: v.Name, Id: v.Name, SandboxId: sb.ID,
			Why: fmt.Sprintf("It is the volume %q of the sandbox.", v.Service),
		})
	}
	for _, n := range inv.Networks {
		x.add(&agboxv1.DoctorFinding{
			Action: leave, Kind: network, Name: n.Name, Id: n.ID, SandboxId: sb.ID, Why: "It is the network of the sandbox.",
		})
	}
	if x.unchanged(sb) && sb.Pool == "" && (sb.State == machine.Ready || sb.State == machine.Stopped) && len(inv.Networks) == 0 {
		x.add(&agboxv1.DoctorFinding{
			Action: leave, Kind: network, Name: runtime.NetworkName(sb.ID), SandboxId: sb.ID, NeedsPerson: true,
			Why: "The network of the sandbox was removed outside agbox; save what you need from the sandbox, remove it and create it again.",
		})
	}
}

// of returns the part of an inventory that belongs to a sandbox.
func of(inv runtime.Inventory, sb ledger.Sandbox) runtime.Inventory {
	mine := func(id runtime.Identity) bool { return id.SandboxID == sb.ID && id.Nonce == sb.Nonce }
	var part runtime.Inventory
	for _, c := range inv.Containers {
		if mine(c.Identity) {
			part.Containers = append(part.Containers, c)
		}
	}
	for _, n := range inv.Networks {
		if mine(n.Identity) {
			part.Networks = append(part.Networks, n)
		}
	}
	for _, v := range inv.Volumes {
		if mine(v.Identity) {
			part.Volumes = append(part.Volumes, v)
		}
	}
	return part
}

// unchanged reports whether the sandbox was the same before and after the look.
func (x *examination) unchanged(sb ledger.Sandbox) bool {
	before, known := x.before[sb.ID]
	return known && before.State == sb.State && before.Want == sb.Want && before.PendingSequence == sb.PendingSequence
}

// judge sets the action for a sandbox and the reason.
func (x *examination) judge(ctx context.Context, f *agboxv1.DoctorFinding, sb ledger.Sandbox, inv runtime.Inventory) {
	trouble := x.o.Loop.Condition(sb).Degraded
	switch {
	case !x.unchanged(sb):
		f.Why = "It changed while it was looked at; the daemon is at it."
		return
	case sb.State == machine.Pending, sb.State == machine.Deleting, sb.Want == machine.WantStopped && sb.State == machine.Ready:
		f.Why = fmt.Sprintf("It is %s; the daemon is at it.", ledger.StateWord(sb.State))
		if trouble != "" {
			f.Why, f.NeedsPerson = f.Why+" "+trouble, true
		}
		return
	case sb.State == machine.Stopped:
		f.Why, f.NeedsPerson = stoppedSentence(primary(inv))
		if sb.StopMessage != "" {
			f.Why, f.NeedsPerson = f.Why+" "+sb.StopMessage, true
		}
		return
	}
	step, err := x.o.Loop.Foresee(ctx, sb, inv)
	switch {
	case err != nil:
		f.Error, f.NeedsPerson = err.Error(), true
		f.Why = "Its container could not be looked at."
	case step.Do == machine.Remove:
		f.Action, f.Why = repair, "It never became ready; what is left of it is removed."
		x.do(f, func() error { return x.repaired(ctx, sb, func() bool { return x.removed(ctx, sb) }) })
	case step.Do == machine.Fence:
		f.Action, f.Why = repair, "It can reach the addresses of this machine; the daemon makes the rules against that again."
		x.do(f, func() error { return x.repaired(ctx, sb, func() bool { return x.fenced(ctx, sb) }) })
	case aboutServices(step):
		f.Action, f.Why = repair, "The daemon brings its services in order."
		if trouble := machine.ServiceTrouble(sb.Record, machine.ServiceRules(sb.Spec)); trouble != "" {
			f.Why += " " + trouble
		}
		x.do(f, func() error { return x.repaired(ctx, sb, func() bool { return x.served(ctx, sb) }) })
	case step.Do == machine.Emit:
		x.emit(ctx, f, sb, step.Event)
	case sb.State == machine.Failed:
		f.Why = fmt.Sprintf("It failed: %s", sb.ErrorMessage)
	default:
		f.Why, f.NeedsPerson = x.readySentence(ctx, sb, primary(inv))
	}
}

func containerSentence(c runtime.Container) string {
	if c.Role != runtime.RoleService {
		return fmt.Sprintf("It is the %s container of the sandbox and is %s.", c.Role, c.State)
	}
	state := string(c.State)
	if c.Health != "" {
		state += " and " + c.Health
	}
	return fmt.Sprintf("It is the container of service %s of the sandbox and is %s.", c.Service, state)
}

// aboutServices reports whether a step is only about services.
func aboutServices(step machine.Step) bool {
	switch step.Do {
	case machine.MakeServices, machine.StartServices, machine.StopServices, machine.RunHook:
		return true
	case machine.Emit:
		return step.Event.GetService() != nil
	}
	return false
}

// served reports whether nothing must be done about the services, or nothing before a
// pause.
func (x *examination) served(ctx context.Context, sb ledger.Sandbox) bool {
	return x.over(ctx, sb, aboutServices)
}

// fenced reports whether rules keep the sandbox from the addresses of the host.
func (x *examination) fenced(ctx context.Context, sb ledger.Sandbox) bool {
	return x.over(ctx, sb, func(step machine.Step) bool { return step.Do == machine.Fence })
}

// over reports whether the next step for a sandbox is another than the one that is meant.
func (x *examination) over(ctx context.Context, sb ledger.Sandbox, meant func(machine.Step) bool) bool {
	after, living := x.o.Ledger.Sandbox(sb.ID)
	if !living {
		return true
	}
	inv, err := x.o.Engine.Inventory(ctx, x.o.InstallID)
	if err != nil {
		return false
	}
	step, err := x.o.Loop.Foresee(ctx, after, of(inv, after))
	return err == nil && !meant(step)
}

// emit completes the finding about a record that the rules update to match the engine.
func (x *examination) emit(ctx context.Context, f *agboxv1.DoctorFinding, sb ledger.Sandbox, ev *agboxv1.SandboxEvent) {
	phase := ev.GetSandboxPhase()
	f.Action = repair
	switch ev.GetEventType() {
	case agboxv1.EventType_SANDBOX_FAILED:
		f.Why = "The daemon marks it failed. " + phase.GetErrorMessage()
	case agboxv1.EventType_SANDBOX_REVIVED:
		f.Why = "The daemon starts its container again, as its revival policy says. " + phase.GetReason()
	case agboxv1.EventType_SANDBOX_RESUME_REQUESTED: // also a restart
		f.Why = "The daemon starts it again. " + phase.GetReason()
	case agboxv1.EventType_SANDBOX_DELETE_REQUESTED: // according to the revival policy, or idle and due
		f.Why = fmt.Sprintf("The daemon deletes it: %s.", phase.GetReason())
	default: // an idle sandbox that has just become due
		f.Action, f.Why = leave, "The daemon stops it: "+phase.GetReason()+"."
		return
	}
	x.do(f, func() error {
		return x.repaired(ctx, sb, func() bool {
			after, living := x.o.Ledger.Sandbox(sb.ID)
			return !living || after.State != sb.State || after.PendingSequence != sb.PendingSequence
		})
	})
}

var errSlow = errors.New("the daemon has not come to it yet; look again in a moment")

// repaired enqueues the sandbox and waits until shows is true.
func (x *examination) repaired(ctx context.Context, sb ledger.Sandbox, shows func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, repairWithin)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond) // not every result is an event
	defer again.Stop()
	x.o.Loop.Enqueue(sb.ID)
	for {
		changed := x.o.Ledger.Changed(sb.ID)
		if shows() {
			return nil
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			return errSlow
		}
	}
}

// removed reports whether the engine has no object of the sandbox any more.
func (x *examination) removed(ctx context.Context, sb ledger.Sandbox) bool {
	inv, err := x.o.Engine.Inventory(ctx, x.o.InstallID)
	left := of(inv, sb)
	return err == nil && left.Empty()
}

func primary(inv runtime.Inventory) *runtime.Container {
	for _, c := range inv.Containers {
		if c.Role == runtime.RolePrimary {
			return &c
		}
	}
	return nil
}

func stoppedSentence(c *runtime.Container) (why string, needsPerson bool) {
	switch {
	case c == nil:
		return "It is stopped and its container was removed outside agbox, so that it cannot start again; remove the sandbox.", true
	case c.State == runtime.StateRunning, c.State == runtime.StatePaused:
		return "It is stopped, but its container was started outside agbox; start the sandbox to use it, or remove it.", true
	}
	return "It is stopped and its container is kept; \"agbox start\" starts it again.", false
}

func (x *examination) readySentence(ctx context.Context, sb ledger.Sandbox, c *runtime.Container) (why string, needsPerson bool) {
	err := x.trouble[sb.ID]
	switch {
	case c != nil && c.State == runtime.StatePaused:
		return "Its container is paused; unpause it with the engine's own tools.", true
	case fault.ReasonOf(err) == agboxv1.ErrorReason_SUPERVISOR_TAMPERED:
		return "It was tampered with. " + err.Error(), true
	case fault.ReasonOf(err) == agboxv1.ErrorReason_HOST_PATH_UNUSABLE:
		return "Its container runs and its supervisor answers. " + err.Error(), true
	case err != nil:
		return "Its container runs, but its supervisor cannot be reached: " + err.Error(), true
	}
	if trouble := machine.ServiceTrouble(sb.Record, machine.ServiceRules(sb.Spec)); trouble != "" {
		return "Its container runs and its supervisor answers. " + trouble, true
	}
	if _, err := x.o.Ledger.Reveal(ctx, sb); err != nil {
		return "Its container runs and its supervisor answers. " + err.Error(), true
	}
	return "It is ready, its container runs and its supervisor answers.", false
}

// reachSupervisors contacts every supervisor that should be linked, and checks every
// socket: replacing a socket does not break an existing link.
func (x *examination) reachSupervisors(ctx context.Context) {
	x.trouble = make(map[string]error)
	var mu sync.Mutex // guards trouble
	var tries errgroup.Group
	tries.SetLimit(linksAtOnce)
	for _, sb := range x.now {
		c := primary(of(x.inv, sb))
		if sb.State != machine.Ready || c == nil || c.State != runtime.StateRunning {
			continue
		}
		tries.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, linkTimeout)
			defer cancel()
			if err := x.supervisorTrouble(ctx, sb.ID); err != nil {
				mu.Lock()
				defer mu.Unlock()
				x.trouble[sb.ID] = err
			}
			return nil
		})
	}
	_ = tries.Wait() // the calls return no errors
}

// supervisorTrouble says why a supervisor cannot be reached, now or by the next daemon,
// does not keep to the protocol after its greeting, or cannot run commands.
func (x *examination) supervisorTrouble(ctx context.Context, sandboxID string) error {
	if err := socketTampered(x.o.Paths.GuestLink(sandboxID)); err != nil {
		return err
	}
	if !x.o.Links.Connected(sandboxID) {
		if err := x.o.Greet(ctx, sandboxID); err != nil {
			return err
		}
	}
	return cmp.Or(x.o.Links.Broken(sandboxID), x.o.Links.CheckLogs(sandboxID), x.missingFile(sandboxID))
}

// missingFile names a file without which the daemon cannot reach a supervisor anew.
func (x *examination) missingFile(sandboxID string) error {
	for _, file := range []string{filepath.Join(x.o.Paths.GuestLink(sandboxID), paths.LinkSocket), x.o.Paths.GuestBoot(sandboxID)} {
		if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
			return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
				"The file %s was removed, so the sandbox cannot be reached after the next start of the daemon: "+
					"stop and start the sandbox, which makes it again.", file)
		}
	}
	return nil
}

// socketTampered looks at the name alone and follows nothing.
func socketTampered(linkDir string) error {
	info, err := os.Lstat(filepath.Join(linkDir, paths.LinkSocket))
	if err != nil || info.Mode()&os.ModeSocket != 0 {
		return nil // whether it is there and answers, the link tells
	}
	return fault.New(errTampered, agboxv1.ErrorReason_SUPERVISOR_TAMPERED,
		"Something that is not a socket stands in the place of its supervisor's socket. Save what you need from its logs, then remove the sandbox.")
}

// unreadable lists the records that prevent a sandbox from being served.
func (x *examination) unreadable() {
	bad := x.o.Ledger.Unreadable()
	for _, id := range x.past {
		err := bad[id]
		if err == nil {
			continue
		}
		x.add(&agboxv1.DoctorFinding{
			Action: leave, Kind: record, Id: id, SandboxId: id, NeedsPerson: true,
			Why: fmt.Sprintf("Its record cannot be read (%v), so that the sandbox is not served; what it has in the engine is left alone. "+
				"Restore the database from a backup, or remove its container and network with the engine's own tools.", err),
		})
	}
}

// known reports whether a record, readable or not, has the id.
func (x *examination) known(sandboxID string) bool {
	_, living := x.o.Ledger.Sandbox(sandboxID)
	return living || slices.Contains(x.past, sandboxID)
}

// errTampered is the class of errors about files that a container has replaced.
var errTampered = errdefs.ErrFailedPrecondition

// orphans judges the engine's objects that belong to no living sandbox.
func (x *examination) orphans(ctx context.Context) {
	for _, c := range x.inv.Containers {
		x.orphan(ctx, c.Identity, &agboxv1.DoctorFinding{Kind: container, Name: c.Name, Id: c.ID}, func() error { return x.o.Loop.RemoveOrphanedContainer(ctx, c) })
	}
	for _, n := range x.inv.Networks {
		x.orphan(ctx, n.Identity, &agboxv1.DoctorFinding{Kind: network, Name: n.Name, Id: n.ID}, func() error { return x.o.Loop.RemoveOrphanedNetwork(ctx, n) })
	}
	for _, v := range x.inv.Volumes {
		x.orphan(ctx, v.Identity, &agboxv1.DoctorFinding{Kind: volume, Name: v.Name, Id: v.Name}, func() error { return x.o.Loop.RemoveOrphanedVolume(ctx, v) })
	}
}

// orphan reports an object and removes it, unless it belongs to a living sandbox, which has its
// own finding.
func (x *examination) orphan(ctx context.Context, id runtime.Identity, f *agboxv1.DoctorFinding, removal func() error) {
	f.SandboxId = id.SandboxID
	if x.o.Ledger.Unreadable()[id.SandboxID] != nil {
		f.Action, f.Why = leave, "The record of its sandbox cannot be read; it is left alone until that is mended."
		x.add(f)
	} else if why, orphaned := x.o.Loop.Orphaned(ctx, id); orphaned {
		f.Action, f.Why = remove, why+" The daemon removes it after its grace period, and --fix now."
		x.do(x.add(f), removal)
	}
}

// logFolders judges the log folders without a record. The daemon never removes one
// itself, because somebody may still want to read it.
func (x *examination) logFolders(ctx context.Context, names []string) {
	for _, id := range names {
		if x.known(id) {
			continue
		}
		f := x.add(&agboxv1.DoctorFinding{
			Action: remove, Kind: logFolder, Name: x.o.Paths.SandboxLogs(id), SandboxId: id,
			Why: "No record speaks of these logs any more. Only --fix removes them; move them away first if you need them.",
		})
		x.do(f, func() error {
			if _, living := x.o.Ledger.Sandbox(id); living {
				return fmt.Errorf("it belongs to sandbox %s by now", id)
			}
			return logs.RemoveAll(ctx, x.o.Paths.Logs(), id)
		})
	}
}

// guestFolders judges the folders of supervisors whose sandboxes are gone. They have no
// user data.
func (x *examination) guestFolders(names []string) {
	for _, id := range names {
		if _, living := x.o.Ledger.Sandbox(id); living || x.o.Ledger.Unreadable()[id] != nil {
			continue
		}
		f := x.add(&agboxv1.DoctorFinding{
			Action: remove, Kind: guestFolder, Name: x.o.Paths.Guest(id), SandboxId: id,
			Why: "The sandbox whose supervisor had this folder does not exist any more; --fix removes it.",
		})
		x.do(f, func() error {
			if _, living := x.o.Ledger.Sandbox(id); living {
				return fmt.Errorf("it belongs to sandbox %s by now", id)
			}
			return os.RemoveAll(x.o.Paths.Guest(id))
		})
	}
}
