package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// errNothing ends a change that has nothing to do and has written nothing. It is not a
// failure.
var errNothing = errors.New("nothing to do")

// StateWord returns the state as users see it, for example "ready".
func StateWord(s agboxv1.SandboxState) string {
	switch s {
	case machine.Pending:
		return "pending"
	case machine.Ready:
		return "ready"
	case machine.Failed:
		return "failed"
	case machine.Stopped:
		return "stopped"
	case machine.Deleting:
		return "being deleted"
	case machine.Deleted:
		return "deleted"
	}
	return "unknown"
}

// notFound refuses an id. As those below, it says how to find the right one.
func notFound(id string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND,
		"There is no sandbox with the id %q; \"agbox ls\" shows the ids and names of all.", id).With("sandbox_id", id)
}

func sandboxIDTaken(id string) error {
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS,
		"The id %q was used before, and ids are never reused; choose another or leave it out.", id).With("sandbox_id", id)
}

func keyReused(key string) *fault.Error {
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_REQUEST_KEY_REUSED,
		"The request key %.80q was used by another request; give every request its own key.", key)
}

// impossible is the error for a request that the sandbox's state does not allow.
func impossible(r machine.Record, typ agboxv1.EventType) error {
	verb, hint := "stopped", "nothing of it runs."
	if r.State == machine.Deleting {
		hint = "its deletion ends what runs in it."
	}
	if typ == agboxv1.EventType_SANDBOX_RESUME_REQUESTED {
		verb, hint = "started", "wait until it is stopped, and start it then."
		if r.Want == machine.WantDeleted {
			hint = "create another one."
		}
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_INVALID_STATE,
		"Sandbox %s is %s and cannot be %s now: %s", r.Called(), StateWord(r.State), verb, hint).With("sandbox_id", r.ID)
}

func notRenamed(r machine.Record) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_INVALID_STATE,
		"Sandbox %s is %s and cannot be renamed.", r.Called(), StateWord(r.State)).With("sandbox_id", r.ID)
}

// NotReady is the error for a sandbox that cannot run execs now.
func NotReady(r machine.Record) error {
	hint := "\"agbox start\" starts it again."
	switch {
	case r.Want == machine.WantDeleted:
		hint = "create another one."
	case r.StopMessage != "":
		hint = r.StopMessage
	case r.Want == machine.WantStopped && r.State != machine.Stopped:
		hint = "it is being stopped, and \"agbox start\" starts it again after that."
	case r.State == machine.Pending:
		hint = "wait until it is ready."
	case r.State == machine.Failed:
		hint = r.ErrorMessage
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_NOT_READY,
		"Sandbox %s is %s: %s", r.Called(), StateWord(r.State), hint).With("sandbox_id", r.ID)
}

func execNotFound(id string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND,
		"There is no exec with the id %q; \"agbox ps -a SANDBOX\" shows the ids of those of a sandbox.", id).With("exec_id", id)
}

func execIDTaken(id string) error {
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS,
		"The exec id %q was used by another request, and ids are never reused; choose another or leave it out.", id).With("exec_id", id)
}

func agentNotFound(id string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND,
		"There is no agent with the id %q; \"agbox agent ls -a\" shows the ids and names of all.", id).With("agent_id", id)
}

// recipientNotFound is for messages, which programs of agents address by id or name.
func recipientNotFound(ref string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND, "There is no agent %q; \"agbox agent ls -a\" shows all.", ref).With("agent_id", ref)
}

// isRoot refuses a change of the agent init.
func isRoot() error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
		"Agent %s is the root of all agents; it never runs and never ends. Name another agent.", agents.Init).With("agent_id", agents.Init)
}

// cannot refuses a request that the state of an agent does not allow.
func cannot(a Agent, verb, why string) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
		"Agent %s is %s and cannot be %s: %s.", a.Called(), a.Word(), verb, why).With("agent_id", a.ID)
}

// notOrphaned refuses a decision about a loss that is not due, and says what is possible instead.
func notOrphaned(a Agent) error {
	advice := fmt.Sprintf("\"agbox agent kill %s\" ends it", a.Called())
	switch {
	case a.Over():
		advice = "spawn a new agent to repeat its work"
	case a.Loss == "":
	case a.AwaitsApproval():
		advice = fmt.Sprintf("first \"agbox agent approve %s\" or \"agbox agent deny %[1]s\" decides what it was asked", a.Called())
	case a.Suspended():
		advice = fmt.Sprintf("first \"agbox agent hold %s\" holds it", a.Called())
	default:
		advice = fmt.Sprintf("first \"agbox agent resume %s\" ends its pause", a.Called())
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
		"Agent %s is %s, and only an ORPHANED agent can be resolved; %s.", a.Called(), a.Word(), advice).With("agent_id", a.ID)
}

// naming lists agents by name or id, at most 10 of them.
func naming(list []Agent) string {
	var names []string
	for _, a := range list[:min(len(list), 10)] {
		names = append(names, cmp.Or(a.Name, a.ID))
	}
	if len(names) < len(list) {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}
