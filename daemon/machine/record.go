// Package machine holds the rules of a sandbox's life as pure functions: Fold
// computes a record from its events, Next says what to do about an observation.
// It performs no I/O and reads no clock.
package machine

import (
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Want is what the user last asked for.
type Want uint8

// The wishes, in the order in which a later one may follow an earlier one;
// nothing follows WantDeleted.
const (
	WantRunning Want = iota
	WantStopped
	WantDeleted
)

// Record is a sandbox as its events tell it. It is a value: Fold returns a new
// one and never changes its argument, so a Record may be read without a lock.
type Record struct {
	ID string
	// Name is the user's name for it; empty when it was given none.
	Name string
	// Nonce is the mark that the labels of the sandbox's containers carry.
	Nonce string
	State agboxv1.SandboxState
	Want  Want
	// ErrorReason and ErrorMessage are set while State is FAILED.
	ErrorReason, ErrorMessage string
	CreatedAt, StateChangedAt time.Time
	// LastSequence is the sequence of the newest folded event.
	LastSequence uint64
	// PendingSequence is the sequence of the event that last made the sandbox
	// PENDING. A daemon that finds it PENDING by an event of an earlier daemon
	// life knows that nobody is working on it.
	PendingSequence uint64
	// WasReady tells whether the sandbox has ever been READY. What was never
	// ready and failed is removed; what was is kept for the user to look at.
	WasReady bool
	// Furnished tells that something of the user's was put into the primary, or was run
	// in it, before the first READY: a new primary would lack it.
	Furnished bool
	// Copied tells that all that the spec copies in is in the primary.
	Copied bool
	// Execs are the running execs by id. The map is never changed in place.
	Execs map[string]Exec
	// ReadyAt is when the sandbox last became READY.
	ReadyAt time.Time
	// Revivals counts how often in a row it was revived without staying READY
	// for reviveStable.
	Revivals int
	// Services are the services by name. The map is never changed in place.
	Services map[string]Service
	// PostCreate is how many commands of post_create have succeeded, and
	// PostCreateFailure tells of one that has not.
	PostCreate        uint32
	PostCreateFailure *HookFailure
	// PostCreateStops counts the commands of post_create that a stop has ended. They
	// run once more after the next start.
	PostCreateStops uint32
	// LastUse is when the sandbox became READY or, if later, when an exec other than
	// its main command last ended.
	LastUse time.Time
}

// Exec is a running exec.
type Exec struct {
	ID string
	// Name is the user's name for it; may be empty.
	Name      string
	StartedAt time.Time
	// BootID is the life of the supervisor that was asked to start it.
	BootID string
	// Sequence is that of its EXEC_STARTED.
	Sequence uint64
	// Hook is set when it is one of the sandbox's own commands.
	Hook *Hook
	// Main tells that it is the container's own command. It runs as long as the
	// container does, and so it does not count as use.
	Main bool
}

// InUse tells whether an exec runs that somebody has asked for: any but the
// container's own command.
func (r Record) InUse() bool {
	for _, e := range r.Execs {
		if !e.Main {
			return true
		}
	}
	return false
}

// Over tells whether nothing of the sandbox is left in the engine for good.
func (r Record) Over() bool { return r.State == agboxv1.SandboxState_SANDBOX_STATE_DELETED }

// Exists tells whether the sandbox has been accepted at all.
func (r Record) Exists() bool { return r.LastSequence > 0 }
