// Package machine has the rules of a sandbox's life as pure functions: Fold computes a
// record from events, and Next decides what to do about an observation. It performs no
// I/O and does not read the clock.
package machine

import (
	"cmp"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Record is the state of a sandbox according to its events. It is a value: Fold returns a
// new one and never changes its argument, so a Record may be read without a lock.
type Record struct {
	ID string
	// Name is the user's newest name for the sandbox, or empty.
	Name string
	// Pool is the id of the pool that the sandbox was made ahead for; empty once somebody has taken it.
	Pool string
	// Taken means that the sandbox was made ahead, before anybody had asked for it.
	Taken bool
	// Accepted is the sequence of the event since which the sandbox is somebody's.
	Accepted uint64
	// Nonce is the random nonce in the labels of the sandbox's containers.
	Nonce string
	State agboxv1.SandboxState
	Want  Want
	// ErrorReason and ErrorMessage are set while State is FAILED.
	ErrorReason, ErrorMessage string
	// StopReason and StopMessage are set while the sandbox is stopped, or is being stopped,
	// because of what something in it did.
	StopReason, StopMessage string
	// Reason is that of the newest request to stop or to delete it.
	Reason                    string
	CreatedAt, StateChangedAt time.Time
	// FailedSince is when it failed first without being READY since. It is zero if it did not.
	FailedSince time.Time
	// StopRequestedAt is when it was last requested to stop.
	StopRequestedAt time.Time
	// Now means that its stop or removal does not wait for agents to save their work.
	Now bool
	// Ended means that it is being deleted and that no process of it runs any more.
	Ended bool
	// RemoveLogs means that the output of its commands is removed with it.
	RemoveLogs bool
	// Restart means that it is started again once it has stopped.
	Restart bool
	// LastSequence is the sequence of the newest folded event.
	LastSequence uint64
	// PendingSequence is the sequence of the event that last made the sandbox PENDING. If
	// that event is from an earlier daemon, nobody is working on the sandbox.
	PendingSequence uint64
	// WasReady means that the sandbox has been READY. A sandbox that fails before that is
	// removed from the engine; any other one is kept for the user to examine.
	WasReady bool
	// Furnished means that data or a command of the user has reached the primary before
	// the first READY. A new primary would lack it.
	Furnished bool
	// Copied means that everything that the spec copies in is in the primary.
	Copied bool
	// Execs are the running execs by id. The map is never modified.
	Execs map[string]Exec
	// Lost are execs, by id, that were recorded as lost and whose processes may live: the
	// container was not there, or may not have ended. They stay until the sandbox is READY
	// the next time. Before that they are taken up if MayReturn is set, or ended. The map is
	// never modified.
	Lost map[string]Exec
	// ReadyAt is when the sandbox last became READY.
	ReadyAt time.Time
	// IdleStop means that the last request to stop it came because nothing ran in it.
	IdleStop bool
	// Revivals counts consecutive revivals without staying READY for reviveStable in
	// between.
	Revivals int
	// Services are the services by name. The map is never modified.
	Services map[string]Service
	// Prepare and PostCreate are what has become of these commands of the spec.
	Prepare, PostCreate Commands
	// LastUse is when the sandbox became READY or, if later, when an exec other than its
	// main command last ended.
	LastUse time.Time
}

// Want is the last request of the user.
type Want uint8

// The wants, in the order in which they may follow each other. Nothing follows
// WantDeleted.
const (
	WantRunning Want = iota
	WantStopped
	WantDeleted
)

// Short names for the states, which this package uses everywhere.
const (
	Pending  = agboxv1.SandboxState_SANDBOX_STATE_PENDING
	Ready    = agboxv1.SandboxState_SANDBOX_STATE_READY
	Failed   = agboxv1.SandboxState_SANDBOX_STATE_FAILED
	Stopped  = agboxv1.SandboxState_SANDBOX_STATE_STOPPED
	Deleting = agboxv1.SandboxState_SANDBOX_STATE_DELETING
	Deleted  = agboxv1.SandboxState_SANDBOX_STATE_DELETED
)

// Exec is a running exec.
type Exec struct {
	ID string
	// Name is the user's name for the exec, or empty.
	Name      string
	StartedAt time.Time
	// BootID is the life of the supervisor that was asked to start the exec. It is empty
	// for an adopted exec, which must not be started again.
	BootID string
	// Sequence is the sequence of its EXEC_STARTED.
	Sequence uint64
	// Hook is set if the exec runs a hook.
	Hook *Hook
	// Main means that it is the container's own command. It runs as long as the
	// container, so it does not count as use.
	Main bool
	// Found means that it was lost and taken up again. It is never started again.
	Found bool
	// MayReturn is set for an exec of Record.Lost that nobody has seen end.
	MayReturn bool
}

// Called is what people call the sandbox: its name, or its id if it has none.
func (r Record) Called() string { return cmp.Or(r.Name, r.ID) }

// InUse reports whether an exec runs that somebody has requested, that is any except the
// container's own command.
func (r Record) InUse() bool {
	for _, e := range r.Execs {
		if !e.Main {
			return true
		}
	}
	return false
}

// Missing reports whether the sandbox failed because the engine did not have its primary.
func (r Record) Missing() bool {
	return r.ErrorReason == agboxv1.ErrorReason_PRIMARY_MISSING.String()
}

// Over reports whether the sandbox is deleted, with nothing left in the engine.
func (r Record) Over() bool { return r.State == agboxv1.SandboxState_SANDBOX_STATE_DELETED }

// Exists reports whether the sandbox has been accepted.
func (r Record) Exists() bool { return r.LastSequence > 0 }

// Service is a service according to its events. Phase, Start, Failures and the failure
// come only from its newest SANDBOX_SERVICE_* event, which retention keeps.
type Service struct {
	Phase Phase
	// At is when the phase began.
	At time.Time
	// Start counts its starts.
	Start uint32
	// Failures counts consecutive failures without being up for serviceStable in between.
	Failures uint32
	// Reason, Message and ExecID describe the failure while Phase is Down.
	Reason, Message, ExecID string
	// Hooks is how many of its hooks have succeeded in this start. HookFailure describes
	// one that failed, while the service is Starting.
	Hooks       uint32
	HookFailure *HookFailure
}

// Phase is the phase of a service according to its events.
type Phase uint8

// The phases. Containers may differ: a Waiting service may have one, and that of a
// service that is Up may have exited a moment ago.
const (
	// Waiting: not started since a request made the sandbox PENDING.
	Waiting Phase = iota
	// Starting: its start was recorded; it is not known to be well yet.
	Starting
	// Up: it is well, and its hooks have run.
	Up
	// Down: it exited, became unhealthy or could not be started, or a hook failed.
	Down
)

// Commands are commands of the spec that run once before the sandbox is READY.
type Commands struct {
	// Done is how many have succeeded. Failure describes one that has failed.
	Done    uint32
	Failure *HookFailure
	// Stops counts those that a stop has ended. They run again after the next start.
	Stops uint32
}

// Hook identifies a hook, as agboxv1.HookRef does.
type Hook struct {
	Service      string
	Start, Index uint32
	Prepare      bool
}

// HookFailure describes a hook that failed.
type HookFailure struct {
	ExecID string
	// Index is the position of the hook in its list, from 0.
	Index uint32
	// Cause is the end of a sentence about it.
	Cause string
}

// runningHook reports whether a hook of the list of another one runs, of any start.
func runningHook(r Record, of Hook) bool {
	for _, e := range r.Execs {
		if e.Hook != nil && e.Hook.Service == of.Service && e.Hook.Prepare == of.Prepare {
			return true
		}
	}
	return false
}

// ServiceRule has the rules of one service.
type ServiceRule struct {
	Name string
	// Required: the sandbox becomes READY only after this service.
	Required bool
	// Early: it is started before the sandbox is READY, which waits for its container, but
	// neither for its healthcheck nor for its hooks, and does not fail with it.
	Early bool
	// OneShot: it is Up once it has exited with code 0, and is not started again.
	OneShot bool
	// After are its dependencies.
	After []Dependency
	// Hooks is how many commands run in the primary once it is well.
	Hooks uint32
}

// Dependency is a service that must come first.
type Dependency struct {
	Name string
	// Healthy: its healthcheck must have passed, if it has one. Otherwise it must run.
	Healthy bool
	// OneShot: it must have exited with code 0.
	OneShot bool
}

// ServiceRules returns the rules of the services of a spec, in its order. Dependencies of
// a required service are required.
func ServiceRules(spec *agboxv1.CreateSpec) []ServiceRule {
	rules := make([]ServiceRule, 0, len(spec.GetServices()))
	position := make(map[string]int, len(spec.GetServices()))
	oneShot := make(map[string]bool)
	for _, s := range spec.GetServices() {
		oneShot[s.GetName()] = s.GetOneShot()
	}
	for i, s := range spec.GetServices() {
		position[s.GetName()] = i
		rule := ServiceRule{
			Name: s.GetName(), Required: s.Required == nil || s.GetRequired(), Early: spec.GetPublished() && !s.GetOneShot(), OneShot: s.GetOneShot(), Hooks: uint32(len(s.GetPostStartOnPrimary())),
		}
		for _, d := range s.GetDependsOn() {
			rule.After = append(rule.After, Dependency{
				Name: d.GetName(), Healthy: d.GetCondition() == agboxv1.DependencyCondition_DEPENDENCY_CONDITION_HEALTHY, OneShot: oneShot[d.GetName()],
			})
		}
		rules = append(rules, rule)
	}
	for changed := true; changed; {
		changed = false
		for _, rule := range rules {
			for _, d := range rule.After {
				if i, known := position[d.Name]; rule.Required && known && !rules[i].Required {
					rules[i].Required, changed = true, true
				}
			}
		}
	}
	return rules
}
