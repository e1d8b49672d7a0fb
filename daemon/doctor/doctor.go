// Package doctor compares the records with the engine and the files, and reports what the
// daemon does about each difference.
//
// It makes no decisions of its own. It asks the loop what machine.Next would do about a
// sandbox, and whether an object is an orphan. Doctor examines a running install. Offline
// examines an install whose daemon cannot start because of its database, and adopts the
// sandboxes of a lost one.
package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Short names for the parts of findings.
const (
	leave  = agboxv1.DoctorAction_DOCTOR_ACTION_LEAVE
	repair = agboxv1.DoctorAction_DOCTOR_ACTION_REPAIR
	remove = agboxv1.DoctorAction_DOCTOR_ACTION_REMOVE
	adopt  = agboxv1.DoctorAction_DOCTOR_ACTION_ADOPT

	record       = agboxv1.DoctorKind_DOCTOR_KIND_SANDBOX_RECORD
	container    = agboxv1.DoctorKind_DOCTOR_KIND_CONTAINER
	network      = agboxv1.DoctorKind_DOCTOR_KIND_NETWORK
	volume       = agboxv1.DoctorKind_DOCTOR_KIND_VOLUME
	logFolder    = agboxv1.DoctorKind_DOCTOR_KIND_LOG_FOLDER
	guestFolder  = agboxv1.DoctorKind_DOCTOR_KIND_GUEST_FOLDER
	database     = agboxv1.DoctorKind_DOCTOR_KIND_DATABASE
	host         = agboxv1.DoctorKind_DOCTOR_KIND_HOST
	engineItself = agboxv1.DoctorKind_DOCTOR_KIND_ENGINE
	agentRecord  = agboxv1.DoctorKind_DOCTOR_KIND_AGENT
)

const (
	// lookTimeout bounds a look at the whole engine.
	lookTimeout = 10 * time.Second
	// linkTimeout bounds the attempt to reach one supervisor.
	linkTimeout = 2 * time.Second
	// linksAtOnce bounds how many supervisors are contacted concurrently.
	linksAtOnce = 16
	// repairWithin is how long the loop may take for one repair.
	repairWithin = 15 * time.Second
)

// Engine is the engine as a Doctor needs it.
type Engine interface {
	// Info returns the identity of the engine.
	Info(ctx context.Context) (runtime.EngineInfo, error)
	// Inventory lists all objects with the install's label.
	Inventory(ctx context.Context, installID string) (runtime.Inventory, error)
	// OtherInstalls counts the containers of other installs.
	OtherInstalls(ctx context.Context, installID string) (int, error)
}

// Links reports which supervisors are linked.
type Links interface {
	// Connected reports whether the sandbox's supervisor is linked.
	Connected(sandboxID string) bool
	// Broken says how the sandbox's supervisor has broken links; nil if it has not.
	Broken(sandboxID string) error
	// CheckLogs fails if the log folder of a linked sandbox was removed under it.
	CheckLogs(sandboxID string) error
}

// Options are the dependencies of a Doctor.
type Options struct {
	Engine Engine
	Loop   *reconcile.Loop
	Links  Links
	// Greet contacts the supervisor of a sandbox without linking it. Only the loop makes
	// links.
	Greet func(ctx context.Context, sandboxID string) error
	// Polling returns why log files are polled instead of watched, or nil if none are.
	Polling   func() error
	Ledger    *ledger.Ledger
	Paths     paths.Install
	InstallID string
	// Address is that of the engine, and AddressFrom says in words where it comes from.
	Address, AddressFrom string
	Log                  *slog.Logger
}

// Doctor examines the install of a running daemon.
type Doctor struct{ o Options }

// New makes a Doctor. It needs no Close.
func New(o Options) *Doctor { return &Doctor{o} }

// examination is one examination of an install.
type examination struct {
	*Doctor
	fix bool
	// before and now are the living sandboxes before and after the look at the engine. A
	// sandbox that differs was changing, and is not judged.
	before map[string]ledger.Sandbox
	now    []ledger.Sandbox
	// past are the ids of records of deleted sandboxes.
	past []string
	inv  runtime.Inventory
	info runtime.EngineInfo
	// trouble says why supervisors cannot be reached or cannot do their work.
	trouble  map[string]error
	findings []*agboxv1.DoctorFinding
}

// add stores a finding and returns it for completion.
func (x *examination) add(f *agboxv1.DoctorFinding) *agboxv1.DoctorFinding {
	x.findings = append(x.findings, f)
	return f
}

// note stores a finding about which nothing has to be done.
func (x *examination) note(kind agboxv1.DoctorKind, name, why string) {
	x.add(&agboxv1.DoctorFinding{Action: leave, Kind: kind, Name: name, Why: why})
}

// do performs the action of a finding if fix is set.
func (x *examination) do(f *agboxv1.DoctorFinding, deed func() error) {
	if !x.fix {
		return
	}
	if err := deed(); err != nil {
		f.Error = err.Error()
		x.o.Log.Warn("doctor could not do what it found to be done", "sandbox_id", f.GetSandboxId(), "kind", f.GetKind().String(), "name", f.GetName(), "error", err)
		return
	}
	f.Done = true
	x.o.Log.Info("doctor did what it found to be done", "sandbox_id", f.GetSandboxId(), "action", f.GetAction().String(), "kind", f.GetKind().String(), "name", f.GetName())
}

// host reports what the host gives sandboxes and refuses the daemon. Nothing has to be done
// about it for sandboxes to work.
func (x *examination) host() {
	if x.info.Remapped() {
		x.note(host, "user namespaces", fmt.Sprintf("The engine gives containers user namespaces: root in a sandbox is user %d on the host, which is the better wall. "+
			"Mounted files of other users belong to nobody in there: copy them instead if a command must change them.", x.info.RootUID))
	}
	if err := x.o.Polling(); err != nil {
		x.note(host, "inotify", fmt.Sprintf("The kernel has no inotify instance or watch left for this user (%v), so output is polled and arrives up to 0.1 s later. "+
			"A sandbox whose processes run as this user may use them up: end it, or raise the limits: sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=1048576.", err))
	}
	if full := process.Crowded(); full != "" {
		x.note(host, "processes", full+" When it is reached, containers and commands fail to start.")
	}
	if err := x.o.Loop.Unguarded(); err != nil {
		x.note(host, "host addresses", err.Error()+" Services of this machine that listen on all addresses, and the metadata of a cloud, can be reached from every sandbox meanwhile.")
	}
}

// ownEngine shows which engine has the containers.
func (x *examination) ownEngine() {
	if x.o.Address != "" {
		x.note(engineItself, x.o.Address, fmt.Sprintf("It is the engine of this install. Its address is %s.", x.o.AddressFrom))
	}
}

// agents reports the agents that do not get on by themselves.
func (x *examination) agents() {
	for _, a := range x.o.Ledger.Living() {
		f := &agboxv1.DoctorFinding{Action: leave, Kind: agentRecord, Name: a.Name, Id: a.ID, SandboxId: a.SandboxID}
		trouble := x.o.Loop.AgentTrouble(a.ID)
		switch {
		case a.Unasked() && agents.RulesOf(a.Spec).Revival == agents.Ask:
			f.NeedsPerson = true
			f.Why = fmt.Sprintf("It is ORPHANED and waits for a decision: \"agbox agent resolve --revive %s\", or --reap.", a.ID)
		case a.Unasked() && a.Pause.Stranded && x.gone(a):
			f.NeedsPerson = true
			f.Why = fmt.Sprintf("It is ORPHANED, and the container of its sandbox is gone: \"agbox agent resolve --reap %s\" gives the agent up, and --revive tries once to start the sandbox.", a.ID)
		case a.Unasked():
			f.Why = fmt.Sprintf("It is ORPHANED, and agbox tries to start its sandbox again, less and less often, at last once an hour: \"agbox agent resolve --revive %s\" tries it now, and --reap gives the agent up.", a.ID)
		case trouble != "":
			f.Why = "It does not get on: " + trouble
		default:
			continue
		}
		x.add(f)
	}
}

// gone reports whether agbox does not try to start the sandbox of an agent, which others own.
func (x *examination) gone(a ledger.Agent) bool {
	sb, exists := x.o.Ledger.Sandbox(a.SandboxID)
	return exists && sb.Missing() && !a.Owned
}

// listFolders returns the names in a folder that are sandbox ids. It ignores other names.
func listFolders(root string) []string {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil // not made yet, or not readable
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && ids.Valid(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
