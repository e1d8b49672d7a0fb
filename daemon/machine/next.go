package machine

import (
	"fmt"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Verb is one thing to do. Each is idempotent: done again after a crash it
// finds its own earlier work.
type Verb uint8

// The verbs.
const (
	// Rest: there is nothing to do until something changes or Wake comes.
	Rest Verb = iota
	// Look: observe the engine, then ask again.
	Look
	// Prepare: have images, network, volumes and containers of the primary and of
	// the services that are named.
	Prepare
	// Start: start the primary.
	Start
	// Connect: reach the supervisor and listen to it.
	Connect
	// Stop: stop the primary.
	Stop
	// Remove: remove containers and network.
	Remove
	// RemoveSpares: remove the sandbox's networks that no container was made for.
	RemoveSpares
	// EndExecs: end every exec that is recorded as running although its
	// container is not, with the status that it left behind.
	EndExecs
	// MakeServices: begin to have images, volumes and containers of the named
	// services, in the background: the sandbox is READY, and a pull can be long.
	MakeServices
	// StartServices: start the named services.
	StartServices
	// StopServices: stop the named services.
	StopServices
	// CopyIn: copy into the primary what the spec wants there before the first READY.
	CopyIn
	// RunHook: have the exec of Step.Hook.
	RunHook
	// RecordMain: record the container's own command, which the supervisor runs.
	RecordMain
	// Emit: append Step.Event.
	Emit
)

var verbNames = [...]string{
	"rest", "look", "prepare", "start", "connect", "stop", "remove", "remove-spares", "end-execs",
	"make-services", "start-services", "stop-services", "copy-in", "run-hook", "record-main", "emit",
}

// String returns the verb's word for logs.
func (v Verb) String() string { return verbNames[v] }

// Changes tells whether the verb changes what the engine has, so that a look begun
// before its end is out of date.
func (v Verb) Changes() bool {
	switch v {
	case Prepare, Start, Stop, Remove, RemoveSpares, MakeServices, StartServices, StopServices:
		return true
	}
	return false
}

// Observation is what is known of a sandbox outside the store.
type Observation struct {
	// Looked tells whether the engine has been asked in this round. A sandbox
	// that was accepted a moment ago needs no look: there is nothing to see.
	Looked bool
	// Primary is nil when there is no such container.
	Primary *runtime.Container
	// EngineRestarted tells that the primary ended while the engine was away.
	EngineRestarted bool
	// Spares tells that the sandbox has a network beside that of its containers: an
	// engine may carry out a request after the daemon that sent it was killed.
	Spares bool
	// Leftovers is true when anything at all of the sandbox is in the engine, or in the
	// folder that its supervisor was given.
	Leftovers bool
	// Connected tells whether the supervisor's exits reach the daemon.
	Connected bool
	// Copied tells that CopyIn has come to its end in this round.
	Copied bool
	// MainDue tells that the linked supervisor has run a command of the container's
	// own in this life, and that it may not have been recorded yet.
	MainDue bool
	// ConnectFailed tells that it was tried in this round, in vain.
	ConnectFailed bool
	// Inherited tells whether the sandbox became PENDING under an earlier
	// daemon, which may have left its work half done.
	Inherited bool
	// HandedOver tells that the earlier daemon ended in order and left its work,
	// however far it was, to this one.
	HandedOver bool
	// StartedAt is when this daemon started the primary, or first saw it
	// running, since the sandbox became PENDING; zero if it did neither.
	StartedAt time.Time
	// Services are the services of the spec, and what else has a container, by name.
	Services map[string]ServiceSeen
}

// Rules are the figures by which Next decides.
type Rules struct {
	// IdleTTL stops a READY sandbox that no exec has used for this long; 0: never.
	// With IdleRemove set it is deleted instead.
	IdleTTL    time.Duration
	IdleRemove bool
	// ReadyWithin is how long the supervisor may take to answer after the
	// primary was started.
	ReadyWithin time.Duration
	// Revival says what becomes of a READY sandbox whose primary has exited;
	// unspecified counts as fail.
	Revival agboxv1.RevivalPolicy
	// PendingRecovery says what becomes of a sandbox that an earlier daemon was making.
	PendingRecovery PendingRecovery
	// Retry is the pause before an unreachable supervisor is tried again.
	Retry time.Duration
	// Services are those of the spec, in its order.
	Services []ServiceRule
	// Copies tells whether something is copied into the primary.
	Copies bool
	// PostCreate is how many commands run before the sandbox is READY for the first time.
	PostCreate uint32
}

// PendingRecovery says what becomes of a PENDING sandbox without a primary whose
// daemon crashed or was stopped. A daemon that was upgraded goes on in either case.
type PendingRecovery uint8

const (
	// PendingResume goes on making it.
	PendingResume PendingRecovery = iota
	// PendingFail fails it with PRIMARY_MISSING.
	PendingFail
)

// Step is what Next wants done.
type Step struct {
	Do Verb
	// Event is what Emit appends; the ledger fills in ids, sequence and state.
	Event *agboxv1.SandboxEvent
	// Services are whom a verb about services means, in the order of the spec.
	Services []string
	// Hook is what RunHook runs.
	Hook *Hook
	// Wake is when to ask again though nothing changed; zero: never.
	Wake time.Time
	// Why explains the step in the log.
	Why string
}

// Next says what to do about a sandbox. It gives one step; after the step it is
// asked again with what is then known, until it answers Rest.
func Next(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case !r.Exists(), r.Over():
		return Step{}
	case r.Want == WantDeleted:
		return nextDeleting(r, o)
	case r.Want == WantStopped && r.State != Stopped && r.State != Failed:
		return nextStopping(r, o)
	}
	switch r.State {
	case Pending:
		return nextPending(r, o, rules, now)
	case Ready:
		return nextReady(r, o, rules, now)
	case Failed:
		return nextFailed(r, o, rules)
	}
	return Step{}
}

func nextDeleting(r Record, o Observation) Step {
	switch {
	case !o.Looked:
		return Step{Do: Look}
	case o.Leftovers && running(o.Primary) && len(r.Execs) > 0:
		return Step{Do: Stop, Why: "running execs get the chance to end before removal"}
	case o.Leftovers:
		return Step{Do: Remove}
	case len(r.Execs) > 0:
		return Step{Do: EndExecs}
	}
	return emit(agboxv1.EventType_SANDBOX_DELETED, nil)
}

func nextStopping(r Record, o Observation) Step {
	switch {
	case !o.Looked:
		return Step{Do: Look}
	case running(o.Primary):
		return Step{Do: Stop}
	case len(runningServices(o)) > 0:
		return Step{Do: StopServices, Services: runningServices(o)}
	case len(r.Execs) > 0:
		return Step{Do: EndExecs}
	}
	return emit(agboxv1.EventType_SANDBOX_STOPPED, nil)
}

func nextPending(r Record, o Observation, rules Rules, now time.Time) Step {
	fresh := !o.Inherited && !r.WasReady && !r.Furnished && o.StartedAt.IsZero() && o.Primary == nil
	switch {
	case !o.Looked && !fresh:
		return Step{Do: Look}
	case len(r.Execs) > 0 && !running(o.Primary):
		return Step{Do: EndExecs}
	case o.Primary == nil && r.WasReady:
		return fail(agboxv1.ErrorReason_PRIMARY_MISSING, removedSentence)
	case o.Primary == nil && r.PostCreateFailure != nil:
		return postCreateFailed(*r.PostCreateFailure)
	case o.Primary == nil && r.Furnished:
		return fail(agboxv1.ErrorReason_PRIMARY_MISSING,
			"The primary container is gone, and with it what was put and run in it before it was ready; remove the sandbox and create it again.")
	case o.Primary == nil && o.Inherited && !o.HandedOver && rules.PendingRecovery == PendingFail:
		return fail(agboxv1.ErrorReason_PRIMARY_MISSING,
			"The daemon was restarted while the sandbox was being made; remove it and create it again.")
	case o.Primary == nil:
		return Step{Do: Prepare, Services: required(rules)}
	}
	if end, ended := hopeless(r, rules); ended {
		if running(o.Primary) && (r.WasReady || len(r.Execs) > 0) {
			return Step{Do: Stop, Why: "the sandbox fails, and its commands end first"}
		}
		return end
	}
	if !running(o.Primary) && !o.StartedAt.IsZero() {
		return fail(exitReason(o), exitSentence(o))
	}
	services, ready := nextServices(r, o, rules, now)
	uncopied := rules.Copies && !r.Copied && !r.WasReady
	switch {
	case services.Do != Rest && (services.Do != RunHook || !uncopied):
		return services
	case !running(o.Primary):
		return Step{Do: Start}
	case !o.Connected:
		return nextUnlinked(r, o, rules, now)
	case uncopied && !o.Copied:
		return Step{Do: CopyIn}
	case uncopied:
		return emit(agboxv1.EventType_SANDBOX_FILES_COPIED, nil)
	case !ready:
		return services
	case !r.WasReady && r.PostCreate < rules.PostCreate && runningHook(r, ""):
		return Step{}
	case !r.WasReady && r.PostCreate < rules.PostCreate:
		return Step{Do: RunHook, Hook: &Hook{Index: r.PostCreate, Start: r.PostCreateStops}}
	}
	return emit(agboxv1.EventType_SANDBOX_READY, nil)
}

// nextUnlinked waits for the supervisor of a primary that was started.
func nextUnlinked(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case !now.After(o.StartedAt.Add(rules.ReadyWithin)):
		return Step{Do: Connect}
	case len(r.Execs) > 0:
		return Step{Do: Stop, Why: "the sandbox fails, and its commands end first"}
	}
	return fail(agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE, fmt.Sprintf(
		"The supervisor did not answer within %s; see the daemon's log, remove the sandbox and create it again.", rules.ReadyWithin))
}

// nextReady tries the supervisor before it asks the engine: when the daemon
// comes back, execs are served again even while the engine is slow or away.
func nextReady(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case !o.Connected && !o.ConnectFailed:
		return Step{Do: Connect}
	case o.Connected && o.MainDue:
		return Step{Do: RecordMain}
	case !o.Looked:
		return Step{Do: Look}
	case !running(o.Primary) && len(r.Execs) > 0:
		return Step{Do: EndExecs}
	case !running(o.Primary):
		return nextDown(r, o, rules, now)
	case o.Spares:
		return Step{Do: RemoveSpares, Why: "the engine has made a second network for a daemon that was killed"}
	}
	services, _ := nextServices(r, o, rules, now)
	if services.Do != Rest {
		return services
	}
	calm := nextCalm(r, o, rules, now)
	if calm.Do == Rest {
		calm.Wake = sooner(calm.Wake, services.Wake)
	}
	return calm
}

// inUseLook is the shortest pause between two looks at a sandbox that is in use: a
// shorter idle_ttl must not keep the daemon and the engine busy.
const inUseLook = time.Second

// idleReason is the reason of a stop or removal that idle_ttl asks for. Programs know
// the word: it is published.
const idleReason = "idle_ttl"

// nextCalm is about a READY sandbox in which nothing is to be mended.
func nextCalm(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case paused(o.Primary):
		return Step{} // shown as it is; nothing answers in there
	case !o.Connected:
		return Step{Wake: now.Add(rules.Retry)}
	case rules.IdleTTL > 0 && r.InUse():
		// However soon they end, the sandbox is not due before.
		return Step{Wake: now.Add(max(rules.IdleTTL, inUseLook))}
	case rules.IdleTTL > 0:
		if due := r.LastUse.Add(rules.IdleTTL); now.Before(due) {
			return Step{Wake: due}
		}
		request := agboxv1.EventType_SANDBOX_STOP_REQUESTED
		if rules.IdleRemove {
			request = agboxv1.EventType_SANDBOX_DELETE_REQUESTED
		}
		return emit(request, &agboxv1.SandboxPhaseDetails{Reason: idleReason})
	}
	return Step{}
}

const (
	// reviveStable is how long a sandbox must stay READY for its revivals to be
	// forgotten, and maxRevivals how many may follow each other before that: what
	// dies again and again is FAILED, not started for ever.
	reviveStable = time.Minute
	maxRevivals  = 5
)

// nextDown applies the revival policy to a READY sandbox whose primary is down.
// A primary that is gone cannot be revived: what was in it is gone too.
func nextDown(r Record, o Observation, rules Rules, now time.Time) Step {
	switch {
	case rules.Revival == agboxv1.RevivalPolicy_REVIVAL_POLICY_REAP:
		return emit(agboxv1.EventType_SANDBOX_DELETE_REQUESTED, &agboxv1.SandboxPhaseDetails{
			Reason: "the primary container ended, and the revival policy is reap",
		})
	case o.Primary == nil:
		return fail(agboxv1.ErrorReason_PRIMARY_MISSING, removedSentence)
	case rules.Revival != agboxv1.RevivalPolicy_REVIVAL_POLICY_REVIVE:
		return fail(exitReason(o), exitSentence(o))
	case r.Revivals >= maxRevivals && now.Sub(r.ReadyAt) < reviveStable:
		return fail(agboxv1.ErrorReason_PRIMARY_EXITED, fmt.Sprintf(
			"The primary container was revived %d times in a row and ended each time; see its logs, then start the sandbox again or remove it.", r.Revivals))
	}
	return emit(agboxv1.EventType_SANDBOX_REVIVED, &agboxv1.SandboxPhaseDetails{Reason: exitSentence(o)})
}

const removedSentence = "The primary container was removed outside agbox; remove the sandbox and create it again."

// nextFailed removes what a sandbox left behind that never became READY. One
// that was READY is kept as it is, so that the user can look and resume.
func nextFailed(r Record, o Observation, rules Rules) Step {
	switch {
	case !o.Looked && (len(r.Execs) > 0 || !r.WasReady || len(rules.Services) > 0):
		return Step{Do: Look}
	case len(r.Execs) > 0 && !running(o.Primary):
		return Step{Do: EndExecs}
	case r.WasReady && len(runningServices(o)) > 0:
		return Step{Do: StopServices, Services: runningServices(o), Why: "services end with their sandbox"}
	case r.WasReady:
		return Step{}
	case o.Leftovers:
		return Step{Do: Remove, Why: "nothing half-made is left behind"}
	}
	return Step{}
}

func running(c *runtime.Container) bool {
	return c != nil && (c.State == runtime.StateRunning || paused(c))
}

func paused(c *runtime.Container) bool {
	return c != nil && c.State == runtime.StatePaused
}

func exitReason(o Observation) agboxv1.ErrorReason {
	if o.EngineRestarted {
		return agboxv1.ErrorReason_ENGINE_RESTARTED
	}
	return agboxv1.ErrorReason_PRIMARY_EXITED
}

func exitSentence(o Observation) string {
	c := o.Primary
	switch {
	case c.Error != "":
		return "The primary container could not be started: " + c.Error
	case c.OOMKilled:
		return "The primary container ran out of memory; give it more or run less in it, then start the sandbox again."
	case o.EngineRestarted:
		return "The primary container ended while the container engine was away, as it does when an engine without live-restore is restarted; start the sandbox again, and turn on live-restore in the engine's configuration."
	case c.ExitCode == 0:
		// The supervisor ends so when it is told to, and we did not tell it.
		return "The primary container was stopped outside agbox, by the engine's own tools or a restart of the engine; start the sandbox again, or remove it."
	}
	return fmt.Sprintf("The primary container exited with code %d; start the sandbox again, or remove it.", c.ExitCode)
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

// Failure is the event that ends a sandbox because a verb failed for good.
func Failure(reason agboxv1.ErrorReason, sentence string) *agboxv1.SandboxEvent {
	return fail(reason, sentence).Event
}
