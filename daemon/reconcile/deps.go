package reconcile

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/runtime"
)

// Options are the dependencies and parameters of a Loop.
type Options struct {
	Engine Engine
	Links  Links
	Execs  Execs
	Files  Files
	Room   Room
	Fence  Fence
	Agents Agents
	Review Review
	Ledger *ledger.Ledger
	Paths  paths.Install
	// Host checks host paths that sandboxes mount or copy.
	Host hostfiles.Checker
	// InstallID is in the labels of the objects of this install.
	InstallID string
	// Identities keeps the identity of the engine. EngineAddress is its address, for
	// messages. EngineIdentified is called each time the engine was seen to be the install's
	// after it may have been replaced; it may be nil.
	Identities       Identities
	EngineAddress    string
	EngineIdentified func()
	// Supervisor is the host path of the supervisor binary for new containers.
	Supervisor string
	// InstallSupervisor installs the newest supervisor binary and returns its host path,
	// which is Supervisor if that has the same content.
	InstallSupervisor func() (path string, err error)
	// Unprivileged means that the daemon's user is not root: files of root in the folders
	// of a sandbox must be removed by a container.
	Unprivileged bool
	// HandedOver means that the previous daemon was upgraded and handed its work over.
	HandedOver bool
	// PendingRecovery is the policy for sandboxes that an earlier daemon was making.
	PendingRecovery machine.PendingRecovery
	// Resync is the maximum pause between two full looks at the engine.
	Resync time.Duration
	// Revival is the policy for sandboxes whose spec has none.
	Revival agboxv1.RevivalPolicy
	// ReadyWithin is how long a supervisor may take to answer after the start.
	ReadyWithin time.Duration
	// OrphanGrace is how long an orphan must have been seen before it is removed. 0 means
	// never.
	OrphanGrace time.Duration
	// MaxExecLog and MaxSandboxLog limit the bytes of output that new containers keep,
	// per stream of an exec and for all execs together. 0 means no limit.
	MaxExecLog    uint64
	MaxSandboxLog uint64
	// MaxFolderFiles limits the files that the folders of a new sandbox on the host have,
	// besides those of recorded execs. 0 means no limit.
	MaxFolderFiles uint64
	// MemoryDefault limits the memory of new containers whose spec does not.
	MemoryDefault MemoryDefault
	// FenceMode says which sandboxes are kept from the addresses of the host.
	FenceMode FenceMode
	Now       func() time.Time
	// AvailableMemory returns how much of the memory of this machine programs can have, in percent. Nil is
	// AvailableMemory of this package.
	AvailableMemory func() int
	Log             *slog.Logger
}

// Engine is a container engine as the loop needs it. Every verb is idempotent and honours
// the deadline of its context. Errors have an errdefs class.
type Engine interface {
	// Ping checks whether the engine answers. It is cheap.
	Ping(ctx context.Context) error
	// Info returns the identity of the engine.
	Info(ctx context.Context) (runtime.EngineInfo, error)
	// Mark makes an object without content that tells this engine, with its present data,
	// from all others, or finds it. Marked reports whether it is there. Unmark removes all
	// marks of the install.
	Mark(ctx context.Context, installID, mark string) error
	Marked(ctx context.Context, installID, mark string) (bool, error)
	Unmark(ctx context.Context, installID string) error
	// EnsureImage returns the local image, or pulls it. progress may be nil.
	EnsureImage(ctx context.Context, want runtime.ImageRequest, progress func(runtime.PullProgress)) (runtime.Image, error)
	// BuildImage builds an image from a tar archive and returns its id.
	BuildImage(ctx context.Context, opts runtime.BuildOptions, context io.Reader, output func(string) error) (id string, err error)
	// ListImages lists the local images, and RemoveImage removes a name of one.
	ListImages(ctx context.Context) ([]runtime.ListedImage, error)
	RemoveImage(ctx context.Context, ref string) error
	// EnsureNetwork makes the network, or finds the one that it made before.
	EnsureNetwork(ctx context.Context, spec runtime.NetworkSpec) (runtime.Network, error)
	// EnsureContainer makes the container, or finds the one that it made before.
	EnsureContainer(ctx context.Context, spec runtime.ContainerSpec) (id string, err error)
	// CopyTo unpacks a tar archive over the root of a container, which need not run.
	CopyTo(ctx context.Context, id string, archive io.Reader) error
	// StartContainer starts a container. It does nothing to a running one.
	StartContainer(ctx context.Context, id string) error
	// StopContainer stops a container. It does nothing to a stopped or missing one.
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	// WaitContainer waits until a container does not run and returns its exit code.
	WaitContainer(ctx context.Context, id string) (exitCode int, err error)
	// RemoveContainer removes a container with its anonymous volumes.
	RemoveContainer(ctx context.Context, id string) error
	// RemoveNetwork removes a network and detaches what is still attached to it.
	RemoveNetwork(ctx context.Context, id string) error
	// EnsureVolume makes the volume, or finds the one that it made before.
	EnsureVolume(ctx context.Context, spec runtime.VolumeSpec) error
	// RemoveVolume removes a volume. No container may have it mounted any more.
	RemoveVolume(ctx context.Context, name string) error
	// ContainerLogs writes the container's output, as far as the engine keeps it.
	ContainerLogs(ctx context.Context, id string, opts runtime.LogOptions, stdout, stderr io.Writer) error
	// ExecIn runs a command in a running container, and returns its exit code. ErrConflict
	// means that the container does not run.
	ExecIn(ctx context.Context, id string, command runtime.ContainerCommand, streams runtime.ContainerStreams) (exitCode int, err error)
	// ReadFile returns the content of a file of a container, which need not run; a
	// missing file is empty. More than limit bytes are an error.
	ReadFile(ctx context.Context, id, path string, limit int64) ([]byte, error)
	// Archive returns a file or folder of a container, which need not run, as a tar stream.
	Archive(ctx context.Context, id, path string) (io.ReadCloser, error)
	// Inventory lists all objects with the install's label.
	Inventory(ctx context.Context, installID string) (runtime.Inventory, error)
	// SandboxInventory lists all objects with the labels of one sandbox.
	SandboxInventory(ctx context.Context, installID, sandboxID string) (runtime.Inventory, error)
	// InspectContainer returns the details of one container, by its id or name.
	InspectContainer(ctx context.Context, id string) (runtime.Container, error)
	// DescribeContainer returns what a container was made from.
	DescribeContainer(ctx context.Context, id string) (runtime.Description, error)
	// Events calls ready once the stream is open, and handle for each event of the
	// install, until ctx ends or the stream breaks.
	Events(ctx context.Context, installID string, since time.Time, ready func(), handle func(runtime.Event)) error
}

// Fence makes rules that keep containers from the addresses of the host. A method fails
// with the reason HOST_FENCE_UNAVAILABLE if this daemon cannot make such rules.
type Fence interface {
	// Gaps returns those of the network interfaces without rules.
	Gaps(interfaces []string) ([]string, error)
	// Raise makes the rules for these interfaces and keeps those of others.
	Raise(interfaces []string) error
	// Trim removes the rules for interfaces that do not exist any more.
	Trim() error
	// Tidy is Trim and removes what the rules have in common once there are none. That is
	// slow, and slows down the next Raise.
	Tidy() error
	// Clear removes all rules.
	Clear() error
	// Able does nothing else than the others' check.
	Able() error
}

// Links are the links to supervisors as the loop needs them.
type Links interface {
	// Connect links a supervisor. It makes one attempt.
	Connect(ctx context.Context, sandboxID string) error
	// Connected reports whether there is a link.
	Connected(sandboxID string) bool
	// Fail ends the waits for a link that nobody can make before something is repaired.
	Fail(sandboxID string, why error)
	// Lives reports whether the supervisor of the newest link is known to run.
	Lives(sandboxID string) bool
	// Configure tells the supervisor of a sandbox that was made ahead whose it is. Nobody gets a new link of
	// such a sandbox before. A second call has no effect.
	Configure(ctx context.Context, sandboxID string, boot *guestv1.BootConfig, env []string, hostname string) error
	// Discard breaks the link of a sandbox. The next one is made when the loop asks for it.
	Discard(sandboxID string)
	// SetHostname sets the host name in the container of a linked supervisor. Only a daemon of root can.
	SetHostname(sandboxID, was, name string) error
	// End ends that supervisor, and with it everything in its container, although the engine
	// does not have the container.
	End(ctx context.Context, sandboxID string, grace time.Duration) error
	// CheckLogs returns an error that says what to do if the log folder of a linked sandbox
	// was removed on the host.
	CheckLogs(sandboxID string) error
	// Drop breaks the link to a supervisor that is about to be replaced, and forgets why
	// the last one could not be made. It is also called for a deleted sandbox.
	Drop(sandboxID string)
}

// Room bounds what sandboxes have in their folders on the host. Its methods need a
// container that does not run.
type Room interface {
	// Tidy removes what does not belong to agbox if there is more than there may be. It
	// fails if there is still too much then.
	Tidy(ctx context.Context, sandboxID string) error
	// Clear removes what does not belong to agbox.
	Clear(ctx context.Context, sandboxID string) error
	// RemoveLogs removes the output of all commands.
	RemoveLogs(ctx context.Context, sandboxID string) error
}

// Files fills a new sandbox.
type Files interface {
	// CopyIn copies files of the host into a linked sandbox. Repeated, it replaces what
	// it made before. It reports progress since the previous report.
	CopyIn(ctx context.Context, sandboxID string, check hostfiles.Checker, copies []hostfiles.Copy, progress func(one hostfiles.Copy, files, bytes int64)) error
}

// Review compares workspaces with what was copied into them.
type Review interface {
	// Unbrought says which work in the workspace of a sandbox was not brought home, and in sentences how
	// it comes; empty is none.
	// open reads files of one that does not run, and is nil for others.
	Unbrought(ctx context.Context, sandboxID string, open func(ctx context.Context, path string) (io.ReadCloser, error)) (work, advice string, err error)
	// Advanced changes when work was brought home. It is cheap.
	Advanced(sandboxID string) string
}

// Execs are the commands in sandboxes as the loop needs them.
type Execs interface {
	// Release lets the container's own command start, which was held back until its files
	// were copied in. A second call has no effect.
	Release(ctx context.Context, sandboxID string) error
	// RunHook runs a hook of the sandbox through its linked supervisor. The request's
	// exec id is run at most once.
	RunHook(ctx context.Context, req *agboxv1.CreateExecRequest, hook machine.Hook) error
	// Main returns the container's own command in the current life of a linked
	// supervisor. It returns nil if there is none, or MainRecorded was called for it.
	Main(sandboxID string) *ledger.MainExec
	// MainRecorded says that the ledger has decided about it, and whether it was
	// recorded.
	MainRecorded(main *ledger.MainExec, recorded bool)
	// EndAll ends execs of a sandbox whose primary did not run after they had begun. missing means that the
	// engine does not have it.
	EndAll(ctx context.Context, sandboxID string, execs map[string]machine.Exec, missing bool) error
	// LostDue reports whether FindExecs must be called over a link of the sandbox.
	LostDue(sandboxID string) bool
	// FindExecs takes up the execs of a linked sandbox that were recorded as lost and that its
	// supervisor has. Those that something may have replaced are ended first: as long as one
	// of them runs, FindExecs fails.
	FindExecs(ctx context.Context, sandboxID string) error
}

// Agents runs the incarnations of agents.
type Agents interface {
	// Start starts the exec of the agent's incarnation, at most once. If it cannot begin
	// because its checkpoints are lost, the event of its end is returned.
	Start(ctx context.Context, a ledger.Agent) (ended *agboxv1.AgentEvent, err error)
	// Drain asks the supervisor to let the incarnation save its work, and to end it when the
	// time for that is over. Repeated calls change nothing. It returns false if the
	// incarnation does not run any more.
	Drain(ctx context.Context, a ledger.Agent) (drains bool, err error)
	// TellChildren tells the incarnation what the children of the agent have of its budget.
	TellChildren(ctx context.Context, a ledger.Agent) error
	// TellPause tells the incarnation whether the agent is paused, and what changed if it was
	// woken.
	TellPause(ctx context.Context, a ledger.Agent) error
	// Kill ends the incarnation. One that does not run is no error.
	Kill(ctx context.Context, a ledger.Agent, mode agboxv1.KillMode) error
	// Reap ends an incarnation that must be replaced. One that does not run is no error.
	Reap(ctx context.Context, a ledger.Agent) error
	// EndFound ends the exec of the newest incarnation, whose end is recorded as a loss. One that
	// does not run is no error.
	EndFound(ctx context.Context, a ledger.Agent) error
	// Exec returns the exec of the incarnation. It returns errdefs.ErrNotFound if that was
	// never accepted.
	Exec(ctx context.Context, a ledger.Agent) (*agboxv1.ExecStatus, error)
	// See adds to an observation what is known about the running incarnation of the agent.
	See(a ledger.Agent, seen *agents.Seen)
	// Ready returns the result of the readiness probe of a running incarnation. It is nil if
	// there is none.
	Ready(execID string) *bool
	// Consume records what the running incarnation has reported.
	Consume(ctx context.Context, a ledger.Agent) error
	// Answer decides about the requests of the running incarnation. Those about which it cannot
	// decide yet stay open, and are offered again when the agent is enqueued.
	Answer(ctx context.Context, a ledger.Agent) error
	// End returns the events that record the end of an incarnation, whose exec has ended.
	// They must be recorded together, and then Forget called.
	End(ctx context.Context, a ledger.Agent, exec *agboxv1.ExecStatus) (after ledger.Agent, last ledger.Reports, err error)
	// Forget drops what is known about an incarnation, if its end is recorded in the agent.
	Forget(a ledger.Agent, ended *agents.Incarnation)
	// LostHolder returns a holder of an agent that is gone, and EndHold records that, unless
	// it has come back. due is when the next one will be gone; zero means never.
	LostHolder(a ledger.Agent) (holder string, due time.Time)
	EndHold(ctx context.Context, a ledger.Agent, holder string) error
	// Metas returns the ids of the agents that have a description.
	Metas() []string
	// Describe writes the description of an agent, from which it is adopted if the database is
	// lost.
	Describe(ctx context.Context, a ledger.Agent) error
	// RemoveMeta removes the description of an agent that is gone. removed means that there
	// was one.
	RemoveMeta(agentID string) (removed bool, err error)
	// RemoveLeft removes the files that an agent that has ended has left, and returns their
	// number.
	RemoveLeft(a ledger.Agent) (removed int, err error)
}

// EngineHealth is the last known health of the engine.
type EngineHealth struct {
	// Known is false until the engine was queried for the first time.
	Known bool
	Info  runtime.EngineInfo
	// Err says why the engine does not answer. It is nil while it does.
	Err error
}

// FenceMode says for which sandboxes the loop makes rules that keep them from the
// addresses of the host.
type FenceMode uint8

const (
	// FenceIfPossible makes them where the daemon can. Elsewhere sandboxes work without.
	FenceIfPossible FenceMode = iota
	// FenceRequired fails sandboxes for which they cannot be made.
	FenceRequired
	// FenceOff makes none.
	FenceOff
)

// MemoryDefault is the limit of the memory of a container whose spec has none. The zero
// value means no limit. At most one field is set.
type MemoryDefault struct {
	// Percent of the memory of the engine's host, 1 to 100.
	Percent int
	// Bytes is a fixed limit.
	Bytes int64
}

// hostReserve is what a share leaves to the host, in bytes. The engine, the daemon and the
// system need less than that.
const hostReserve = 1 << 30

// Of returns the limit in bytes on a host with this much memory; 0 means none.
//
// Without a limit, a command that eats memory uses up that of the host. The kernel then
// kills some process of the host, which may be the engine's or the daemon's. With a limit
// below the host's memory it kills a process of the container. On a host with less than
// 2 GiB the reserve would leave too little to the sandbox, so the sandbox gets half.
func (d MemoryDefault) Of(host int64) int64 {
	if d.Bytes > 0 || d.Percent == 0 || host <= 0 {
		return d.Bytes
	}
	return min(host*int64(d.Percent)/100, max(host-hostReserve, host/2))
}

// Identities keeps the identity of the install's engine.
type Identities interface {
	// Engine returns the identity. It is nil before the first contact.
	Engine(ctx context.Context) (*storev1.Engine, error)
	// SetEngine records another one.
	SetEngine(ctx context.Context, engine *storev1.Engine) error
}
