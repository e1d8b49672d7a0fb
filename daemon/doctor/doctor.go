// Package doctor compares what the records say with what the engine and the
// files show, and tells a person what the daemon does about each difference.
//
// It decides nothing of its own: what becomes of a sandbox it asks machine.Next
// by way of the loop, and whose an object is, the function by which the loop
// removes orphans. Doctor looks at a running install; Offline, without a daemon,
// at one whose database keeps the daemon from starting, and adopts what a lost
// database knew.
package doctor

import (
	"context"
	"log/slog"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
)

// Short names for what findings are made of.
const (
	leave  = agboxv1.DoctorAction_DOCTOR_ACTION_LEAVE
	repair = agboxv1.DoctorAction_DOCTOR_ACTION_REPAIR
	remove = agboxv1.DoctorAction_DOCTOR_ACTION_REMOVE
	adopt  = agboxv1.DoctorAction_DOCTOR_ACTION_ADOPT

	record      = agboxv1.DoctorKind_DOCTOR_KIND_SANDBOX_RECORD
	container   = agboxv1.DoctorKind_DOCTOR_KIND_CONTAINER
	network     = agboxv1.DoctorKind_DOCTOR_KIND_NETWORK
	volume      = agboxv1.DoctorKind_DOCTOR_KIND_VOLUME
	logFolder   = agboxv1.DoctorKind_DOCTOR_KIND_LOG_FOLDER
	guestFolder = agboxv1.DoctorKind_DOCTOR_KIND_GUEST_FOLDER
	database    = agboxv1.DoctorKind_DOCTOR_KIND_DATABASE
)

const (
	// lookTimeout bounds a look at the whole engine.
	lookTimeout = 10 * time.Second
	// linkTimeout bounds the try to reach one supervisor.
	linkTimeout = 2 * time.Second
	// linksAtOnce bounds how many supervisors are tried at a time.
	linksAtOnce = 16
	// repairWithin is how long the loop may take over one repair.
	repairWithin = 15 * time.Second
)

// Engine is what a look at a running install needs of the engine.
type Engine interface {
	// Inventory lists everything that carries the install's label.
	Inventory(ctx context.Context, installID string) (runtime.Inventory, error)
	// OtherInstalls counts the containers of other installs.
	OtherInstalls(ctx context.Context, installID string) (int, error)
}

// Links tells which supervisors are linked.
type Links interface {
	// Connected tells whether the sandbox's supervisor is linked.
	Connected(sandboxID string) bool
	// CheckLogs fails if the log folder of a linked sandbox was removed under it.
	CheckLogs(sandboxID string) error
}

// Options are the rooms that a Doctor asks.
type Options struct {
	Engine Engine
	Loop   *reconcile.Loop
	Links  Links
	// Greet tries the supervisor of a sandbox without linking it: the links are
	// the loop's to make.
	Greet     func(ctx context.Context, sandboxID string) error
	Ledger    *ledger.Ledger
	Paths     paths.Install
	InstallID string
	Log       *slog.Logger
}

// Doctor examines the install of a running daemon.
type Doctor struct {
	engine    Engine
	loop      *reconcile.Loop
	links     Links
	greet     func(ctx context.Context, sandboxID string) error
	ledger    *ledger.Ledger
	paths     paths.Install
	installID string
	log       *slog.Logger
}

// New makes a Doctor; it holds nothing that would have to be closed.
func New(o Options) *Doctor {
	return &Doctor{
		engine: o.Engine, loop: o.Loop, links: o.Links, greet: o.Greet,
		ledger: o.Ledger, paths: o.Paths, installID: o.InstallID, log: o.Log,
	}
}

// examination is one look at everything.
type examination struct {
	*Doctor
	fix bool
	// before and now are the living sandboxes before and after the look at the
	// engine: what is not in both alike was on its way, and is not judged.
	before map[string]ledger.Sandbox
	now    []ledger.Sandbox
	// past are the ids of records that are not living.
	past []string
	inv  runtime.Inventory
	// trouble holds why supervisors cannot be reached or cannot do their work.
	trouble  map[string]error
	findings []*agboxv1.DoctorFinding
}

// Examine looks at everything and, with fix set, does what it finds to be done.
// It fails when engine or store cannot be read; a step that fails is told in its
// finding.
func (d *Doctor) Examine(ctx context.Context, fix bool) (*agboxv1.DoctorResponse, error) {
	x := &examination{Doctor: d, fix: fix, before: make(map[string]ledger.Sandbox)}
	// Folders come before records and objects before records: whatever was made in
	// between has a record by the time it is asked for.
	logs, guests := listFolders(d.paths.Logs()), listFolders(d.paths.Guests())
	for _, sb := range d.ledger.Sandboxes() {
		x.before[sb.ID] = sb
	}
	others, err := x.look(ctx)
	if err != nil {
		return nil, err
	}
	x.now = d.ledger.Sandboxes()
	if x.past, err = d.ledger.PastIDs(ctx); err != nil {
		return nil, err
	}
	x.reachSupervisors(ctx)

	x.database()
	for _, sb := range x.now {
		x.sandbox(ctx, sb)
	}
	x.unreadable()
	x.orphans(ctx)
	x.logFolders(ctx, logs)
	x.guestFolders(guests)
	return &agboxv1.DoctorResponse{
		Findings: x.findings, OtherInstallContainers: uint32(others), InstallId: d.installID,
	}, nil
}

func (x *examination) look(ctx context.Context) (others int, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if x.inv, err = x.engine.Inventory(ctx, x.installID); err != nil {
		return 0, err
	}
	return x.engine.OtherInstalls(ctx, x.installID)
}

// add keeps a finding and returns it, to be completed.
func (x *examination) add(f *agboxv1.DoctorFinding) *agboxv1.DoctorFinding {
	x.findings = append(x.findings, f)
	return f
}

// do carries out what a finding says, if that was asked for.
func (x *examination) do(f *agboxv1.DoctorFinding, deed func() error) {
	if !x.fix {
		return
	}
	if err := deed(); err != nil {
		f.Error = err.Error()
		x.log.Warn("doctor could not do what it found to be done", "sandbox_id", f.GetSandboxId(), "kind", f.GetKind().String(), "name", f.GetName(), "error", err)
		return
	}
	f.Done = true
	x.log.Info("doctor did what it found to be done", "sandbox_id", f.GetSandboxId(), "action", f.GetAction().String(), "kind", f.GetKind().String(), "name", f.GetName())
}

func (x *examination) database() {
	x.add(&agboxv1.DoctorFinding{
		Action: leave, Kind: database, Name: x.paths.Database(),
		Why: databaseSentence(len(x.now), len(x.past)-len(x.ledger.Unreadable()), len(x.ledger.Unreadable())),
	})
}
