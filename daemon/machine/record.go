// Package machine has the rules of a sandbox's life as pure functions: Fold computes a
// record from events, and Next decides what to do about an observation. It performs no
// I/O and does not read the clock.
package machine

import (
	"cmp"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Want is the last request of the user.
type Want uint8

// The wants, in the order in which they may follow each other. Nothing follows
// WantDeleted.
const (
	WantRunning Want = iota
	WantStopped
	WantDeleted
)

// Record is the state of a sandbox according to its events. It is a value: Fold returns a
// new one and never changes its argument, so a Record may be read without a lock.
type Record struct {
	ID string
	// Name is the user's newest name for the sandbox, or empty.
	Name string
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
	// PostCreate is the number of commands of post_create that have succeeded.
	// PostCreateFailure describes one that has failed.
	PostCreate        uint32
	PostCreateFailure *HookFailure
	// PostCreateStops counts the commands of post_create that a stop has ended. They run
	// again after the next start.
	PostCreateStops uint32
	// LastUse is when the sandbox became READY or, if later, when an exec other than its
	// main command last ended.
	LastUse time.Time
}

// Called is what people call the sandbox: its name, or its id if it has none.
func (r Record) Called() string { return cmp.Or(r.Name, r.ID) }

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
