package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/store"
)

// Describer is the engine as an examination without a daemon needs it. It cannot change
// anything.
type Describer interface {
	Engine
	// DescribeContainer returns what a container was made from.
	DescribeContainer(ctx context.Context, id string) (runtime.Description, error)
}

// Offline examines an install whose daemon does not run. The caller must hold the lock of
// the install.
type Offline struct {
	Engine Describer
	Paths  paths.Install
	// CheckDatabase is as in store.Options.CheckCommand.
	CheckDatabase func(path string) *exec.Cmd
	// Execs reads the status files of a sandbox, as execs.AdoptAll does.
	Execs func(ctx context.Context, sandboxID string, running bool) (ledger.AdoptedExecs, error)
	// Agents reads the files of the agents, as agents.AdoptAll does.
	Agents func() []ledger.AdoptedAgent
	Now    func() time.Time
	Log    *slog.Logger
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
