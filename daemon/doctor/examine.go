package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/store"
)

// Examine examines everything and, with fix set, performs the actions. It fails if engine
// or store cannot be read. The error of an action is part of its finding.
func (d *Doctor) Examine(ctx context.Context, fix bool) (*agboxv1.DoctorResponse, error) {
	x := &examination{Doctor: d, fix: fix, before: make(map[string]ledger.Sandbox)}
	// List folders before records, and objects before records. So whatever is made in
	// between has a record when it is looked up.
	logs, guests := listFolders(d.o.Paths.Logs()), listFolders(d.o.Paths.Guests())
	for _, sb := range d.o.Ledger.Sandboxes() {
		x.before[sb.ID] = sb
	}
	others, err := x.look(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.o.Loop.Probe(ctx); fault.ReasonOf(err) == agboxv1.ErrorReason_ENGINE_CHANGED {
		// What that engine has or has not says nothing about the records.
		x.add(&agboxv1.DoctorFinding{Action: leave, Kind: engineItself, Name: d.o.Address, NeedsPerson: true, Why: err.Error()})
		return &agboxv1.DoctorResponse{Findings: x.findings, OtherInstallContainers: uint32(others), InstallId: d.o.InstallID}, nil
	}
	x.now = d.o.Ledger.Sandboxes()
	if x.past, err = d.o.Ledger.PastIDs(ctx); err != nil {
		return nil, err
	}
	x.reachSupervisors(ctx)

	x.database()
	x.ownEngine()
	x.host()
	for _, sb := range x.now {
		x.sandbox(ctx, sb)
	}
	x.agents()
	x.unreadable()
	x.orphans(ctx)
	x.logFolders(ctx, logs)
	x.guestFolders(guests)
	return &agboxv1.DoctorResponse{
		Findings: x.findings, OtherInstallContainers: uint32(others), InstallId: d.o.InstallID,
	}, nil
}

func (x *examination) look(ctx context.Context) (others int, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if x.info, err = x.o.Engine.Info(ctx); err != nil {
		return 0, err
	}
	if x.inv, err = x.o.Engine.Inventory(ctx, x.o.InstallID); err != nil {
		return 0, err
	}
	return x.o.Engine.OtherInstalls(ctx, x.o.InstallID)
}

func (x *examination) database() {
	x.note(database, x.o.Paths.Database(), databaseSentence(len(x.now), len(x.past)-len(x.o.Ledger.Unreadable()), len(x.o.Ledger.Unreadable())))
}

// Examine reports what prevents the daemon from starting. With fix set it adopts the
// sandboxes of a lost database. It never changes a damaged one. It fails if the engine
// cannot be read, because nothing can be adopted without its list.
func (o Offline) Examine(ctx context.Context, fix bool) (*agboxv1.DoctorResponse, error) {
	out := &agboxv1.DoctorResponse{Offline: true}
	var known bool
	var err error
	if out.InstallId, known, err = store.InstallIDOf(o.Paths.Sentinel()); err != nil {
		return nil, fmt.Errorf("the install id beside the database cannot be read: %w", err)
	}
	err = store.Examine(ctx, store.Options{
		Path: o.Paths.Database(), Sentinel: o.Paths.Sentinel(), Logger: o.Log, CheckCommand: o.CheckDatabase,
	})
	f := &agboxv1.DoctorFinding{Action: leave, Kind: database, Name: o.Paths.Database()}
	out.Findings = append(out.Findings, f)
	switch {
	case err == nil:
		f.Why = "It is sound. Start the daemon with \"agbox daemon start\" and ask again: only with it can the sandboxes be looked at."
		return out, nil
	case errdefs.IsNotFound(err):
		f.Why = "There has never been one here; the daemon makes it at its first start."
		return out, nil
	case errors.Is(err, context.Canceled):
		return nil, err
	}
	f.Why, f.NeedsPerson = err.Error(), true
	if !known || !ids.Valid(out.GetInstallId()) {
		return out, nil
	}
	lost := errors.Is(err, store.ErrLost)
	found, err := o.look(ctx, out)
	switch {
	case err != nil && lost:
		return nil, err
	case err != nil:
		o.Log.Warn("the engine could not be asked what it has of the install", "error", err)
	case lost:
		return out, o.adoptAll(ctx, out, found, fix)
	default:
		out.Findings = append(out.Findings, leftAlone(found)...)
	}
	return out, nil
}

// look lists the engine's objects of the install.
func (o Offline) look(ctx context.Context, out *agboxv1.DoctorResponse) (runtime.Inventory, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := o.Engine.Inventory(ctx, out.GetInstallId())
	if err != nil {
		return found, err
	}
	others, err := o.Engine.OtherInstalls(ctx, out.GetInstallId())
	out.OtherInstallContainers = uint32(others)
	return found, err
}

// leftAlone lists objects that must wait until the database is repaired.
func leftAlone(found runtime.Inventory) []*agboxv1.DoctorFinding {
	const why = "It waits until the database is there again; nothing touches it."
	var list []*agboxv1.DoctorFinding
	for _, c := range found.Containers {
		list = append(list, &agboxv1.DoctorFinding{
			Action: leave, Kind: container, Name: c.Name, Id: c.ID, SandboxId: c.SandboxID, Why: fmt.Sprintf("It is %s. %s", c.State, why),
		})
	}
	for _, n := range found.Networks {
		list = append(list, &agboxv1.DoctorFinding{
			Action: leave, Kind: network, Name: n.Name, Id: n.ID, SandboxId: n.SandboxID, Why: why,
		})
	}
	return list
}

func databaseSentence(living, deleted, unreadable int) string {
	holds := counted(living, "living sandbox", "living sandboxes")
	history := "the history of " + counted(deleted, "deleted one", "deleted ones")
	if unreadable > 0 {
		return fmt.Sprintf("It is open; it holds %s, %s, and %d that cannot be read.", holds, history, unreadable)
	}
	return fmt.Sprintf("It is open and sound; it holds %s and %s.", holds, history)
}
