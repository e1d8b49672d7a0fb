package machine

import (
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Step is the decision of Next.
type Step struct {
	Do Verb
	// Event is the event for Emit. The ledger fills in ids, sequence and state.
	Event *agboxv1.SandboxEvent
	// Services are the services for a verb about services, in the order of the spec.
	Services []string
	// Hook is the hook for RunHook.
	Hook *Hook
	// Wake is when to call Next again even if nothing has changed. Zero means never.
	Wake time.Time
	// Why explains the step in the log.
	Why string
}

// Verb is an action. Each verb is idempotent: executed again after a crash, it finds what
// it made before.
type Verb uint8

// The verbs.
const (
	// Rest: do nothing until something changes or Wake comes.
	Rest Verb = iota
	// Look: observe the engine, then call Next again.
	Look
	// Prepare: make images, network, volumes and containers of the primary and of the
	// named services.
	Prepare
	// Start: start the primary.
	Start
	// Connect: link the supervisor and watch its exits.
	Connect
	// Configure: tell the supervisor of a sandbox that was made ahead whose it is now.
	Configure
	// Stop: stop the primary.
	Stop
	// Kill: end all processes of the primary and of the named services, at once.
	Kill
	// Remove: remove containers and network.
	Remove
	// RemoveSpares: remove those networks of the sandbox that no container was made for,
	// and the containers that were made to read an image.
	RemoveSpares
	// EndExecs: end every exec that is recorded as running although its container does
	// not run. Its status file has its result.
	EndExecs
	// FindExecs: take up those execs that were recorded as lost and that the linked supervisor
	// has.
	FindExecs
	// RemoveLogs: remove the output of all commands of a sandbox that is deleted.
	RemoveLogs
	// MakeServices: start making images, volumes and containers of the named services in
	// the background. The sandbox is READY, and a pull can take long.
	MakeServices
	// StartServices: start the named services.
	StartServices
	// StopServices: stop the named services.
	StopServices
	// CopyIn: copy into the primary what the spec requires before the first READY.
	CopyIn
	// RunHook: run the exec of Step.Hook.
	RunHook
	// Fence: make the rules that keep the containers from the addresses of the host.
	Fence
	// RecordMain: record the container's own command, which the supervisor runs.
	RecordMain
	// Emit: append Step.Event.
	Emit
)

var verbNames = [...]string{
	"rest", "look", "prepare", "start", "connect", "configure", "stop", "kill", "remove", "remove-spares", "end-execs", "find-execs", "remove-logs",
	"make-services", "start-services", "stop-services", "copy-in", "run-hook", "fence", "record-main", "emit",
}

// String returns the verb's name in logs.
func (v Verb) String() string { return verbNames[v] }

// Changes reports whether the verb changes objects of the engine. A look that began
// before its end is then out of date.
func (v Verb) Changes() bool {
	switch v {
	case Prepare, Start, Stop, Remove, RemoveSpares, MakeServices, StartServices, StopServices:
		return true
	}
	return false
}

// Observation is what is known about a sandbox besides its record.
type Observation struct {
	// Looked means that the engine was observed in this round. A sandbox that was
	// accepted a moment ago needs no look, because it has no objects yet.
	Looked bool
	// Primary is nil if there is no such container.
	Primary *runtime.Container
	// Stray means that the engine does not have the primary or says that it has ended, but
	// its first process, as an engine named it, lives. Primary is running then.
	Stray bool
	// EngineRestarted means that the primary ended while the engine was away.
	EngineRestarted bool
	// Spares means that the sandbox has a network besides that of its containers. An
	// engine may execute a request after the daemon that sent it was killed.
	Spares bool
	// Unfenced are the network interfaces of the sandbox that lack the rules that keep
	// containers from the addresses of the host, and must have them.
	Unfenced []string
	// Leftovers means that the engine has any object of the sandbox, or the folder for
	// its supervisor exists.
	Leftovers bool
	// LogsRemoved means that RemoveLogs was done, as far as it could be.
	LogsRemoved bool
	// Connected means that the daemon receives the supervisor's exits.
	Connected bool
	// Configured means that Configure has completed in this round.
	Configured bool
	// Copied means that CopyIn has completed in this round.
	Copied bool
	// Ignored says which files were copied although a .gitignore names them; nil if none.
	Ignored *agboxv1.SandboxPhaseDetails
	// MainDue means that the linked supervisor has run a command of the container's own
	// in this life that may not be recorded yet.
	MainDue bool
	// LostDue means that no supervisor was asked yet, over the link of now, for the execs of
	// Record.Lost.
	LostDue bool
	// ConnectFailed means that connecting has failed in this round.
	ConnectFailed bool
	// Inherited means that the sandbox became PENDING under an earlier daemon, which may
	// have left its work incomplete.
	Inherited bool
	// HandedOver means that the earlier daemon was upgraded and handed its work over to
	// this one.
	HandedOver bool
	// StartedAt is when this daemon started the primary, or first saw it running, since
	// the sandbox became PENDING. It is zero if it did neither.
	StartedAt time.Time
	// DrainUntil is how long a stop or removal waits for incarnations of agents, which save
	// their work. It is zero if none runs.
	DrainUntil time.Time
	// Services are the services of the spec, and others that have a container, by name.
	Services map[string]ServiceSeen
}

// ServiceSeen is what is known about a service besides its record.
type ServiceSeen struct {
	// Container is nil if there is none.
	Container *runtime.Container
	// Started is the number of the last start that this daemon has executed. 0 means
	// none.
	Started uint32
	// StartedAt is the time of that start, or zero.
	StartedAt time.Time
	// Making means that MakeServices is still running for the service.
	Making bool
	// Failure is the error of the last verb about the service, or nil. It is cleared once
	// SANDBOX_SERVICE_FAILED has reported it.
	Failure *ServiceFailure
}

// ServiceFailure says why a service could not be made or started.
type ServiceFailure struct {
	Reason  agboxv1.ErrorReason
	Message string
}

// Rules are the parameters of Next.
type Rules struct {
	// IdleTTL is the time without a running exec after which a READY sandbox is stopped,
	// or deleted if IdleRemove is set. 0 means never.
	IdleTTL    time.Duration
	IdleRemove bool
	// CleanupTTL is the time after which a STOPPED sandbox is deleted. 0 means never.
	CleanupTTL time.Duration
	// ReadyWithin is how long the supervisor may take to answer after the primary was
	// started.
	ReadyWithin time.Duration
	// Revival is the policy for a READY sandbox whose primary has exited. Unspecified
	// means fail.
	Revival agboxv1.RevivalPolicy
	// PendingRecovery is the policy for a sandbox that an earlier daemon was making.
	PendingRecovery PendingRecovery
	// Retry is the pause before another attempt to reach the supervisor.
	Retry time.Duration
	// Services are the services of the spec, in its order.
	Services []ServiceRule
	// Withheld has the names of the services that must not run while the sandbox is READY,
	// with a sentence that says why.
	Withheld map[string]string
	// Copies means that the spec copies something into the primary.
	Copies bool
	// Prepare and PostCreate are the numbers of commands that run before the sandbox is first READY.
	Prepare, PostCreate uint32
}

// PendingRecovery is the policy for a PENDING sandbox without a primary whose daemon
// crashed or was stopped. After an upgrade the daemon continues under either policy.
type PendingRecovery uint8

// The reasons of stops and removals. They are part of the published contract.
const (
	// StopRequested: a caller asked for the stop.
	StopRequested = "stop_requested"
	// DeleteRequested: a caller asked for the removal.
	DeleteRequested = "delete_requested"
	// idleReason: nothing ran in it for its idle_ttl.
	idleReason = "idle_ttl"
	// cleanupReason: it was stopped for its cleanup_ttl.
	cleanupReason = "cleanup_ttl"
)

const (
	// reviveStable is how long a sandbox must stay READY for its revivals to be
	// forgotten. maxRevivals is how many may follow each other before that. A primary
	// that exits again and again makes the sandbox FAILED.
	reviveStable = time.Minute
	maxRevivals  = 5
)

func running(c *runtime.Container) bool {
	return c != nil && (c.State == runtime.StateRunning || paused(c))
}

func paused(c *runtime.Container) bool {
	return c != nil && c.State == runtime.StatePaused
}

func emit(typ agboxv1.EventType, phase *agboxv1.SandboxPhaseDetails) Step {
	ev := &agboxv1.SandboxEvent{EventType: typ}
	if phase != nil {
		ev.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: phase}
	}
	return Step{Do: Emit, Event: ev}
}

func fail(reason agboxv1.ErrorReason, sentence string) Step {
	return emit(agboxv1.EventType_SANDBOX_FAILED, &agboxv1.SandboxPhaseDetails{
		ErrorCode:    reason.String(),
		ErrorMessage: sentence,
	})
}

// Failure returns the event that fails a sandbox after a permanent error of a verb.
func Failure(reason agboxv1.ErrorReason, sentence string) *agboxv1.SandboxEvent {
	return fail(reason, sentence).Event
}
