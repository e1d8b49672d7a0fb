package incarnations

import (
	"encoding/json"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// request is what the program of an incarnation asks. Its supervisor tells it again over each
// new link until it is answered.
type request struct {
	// number counts the requests of the incarnation from 1.
	number uint64
	op     string
	body   []byte
}

// decode reads the fields of a request. Those that it does not have are ignored.
func (q request) decode(into any) error {
	if err := json.Unmarshal(q.body, into); err != nil {
		return invalid("The fields of the op %s cannot be read: %v.", q.op, err)
	}
	return nil
}

// mayAct refuses what the state of the agent does not allow. Its supervisor refuses it, too,
// once it knows the state.
func mayAct(a ledger.Agent, op string) error {
	if a.Acts(op) {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
		"Agent %s is %s, so its program may not do this (%s) now. A paused one takes the observation once it is woken, and says how it goes on with resumed; one that plans reports the phase EXECUTING first.",
		a.Called(), a.Word(), op).With("agent_id", a.ID)
}

// invalid refuses a request.
func invalid(format string, args ...any) error {
	return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, format, args...)
}

// of identifies a request of the agent's incarnation.
func (q request) of(a ledger.Agent) ledger.Asked {
	return ledger.Asked{Incarnation: a.Incarnation.N, Number: q.number}
}

// maxText bounds the texts about a child, in bytes.
const maxText = 1 << 10

func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "..."
}
