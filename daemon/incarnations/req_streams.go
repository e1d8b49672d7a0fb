package incarnations

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// streamOf reads the name of a stream in a request.
func streamOf(q request) (string, error) {
	var want struct {
		Stream string `json:"stream"`
	}
	if err := q.decode(&want); err != nil {
		return "", err
	}
	if _, held := heldStream(want.Stream); !held && !journal.ValidStream(want.Stream) {
		return "", invalid("A stream has a name of at most 63 lower-case letters, digits, dots, dashes and underscores, or is agent:NAME, and not %.80q.", want.Stream)
	}
	return want.Stream, nil
}

// open lets the agent get the messages of a stream from now on, or hold an agent.
func (r *Runner) open(ctx context.Context, a ledger.Agent, q request) (any, bool, error) {
	if err := mayAct(a, q.op); err != nil {
		return nil, false, err
	}
	stream, err := streamOf(q)
	if ref, held := heldStream(stream); held {
		return r.openHold(ctx, a, ref)
	}
	if err == nil {
		a, err = r.ledger.OpenStream(ctx, a.ID, stream)
	}
	return openStreams(a), false, err
}

// close ends that.
func (r *Runner) close(ctx context.Context, a ledger.Agent, q request) (any, bool, error) {
	stream, err := streamOf(q)
	if ref, held := heldStream(stream); held {
		return r.closeHold(ctx, a, ref)
	}
	if err == nil {
		a, err = r.ledger.CloseStream(ctx, a.ID, stream)
	}
	return openStreams(a), false, err
}

// openStreams is the answer to both.
func openStreams(a ledger.Agent) any { return gate.Streams{Streams: a.Streams} }

// message is a message as its recipient sees it.
type message struct {
	Seq    uint64 `json:"seq"`
	Kind   string `json:"kind"`
	From   string `json:"from"`
	Stream string `json:"stream,omitempty"`
	Key    string `json:"key,omitempty"`
	Text   string `json:"text"`
	// Body has the details of a message of agbox itself.
	Body json.RawMessage `json:"body,omitempty"`
	At   string          `json:"at"`
	// Left is the number of messages in the inbox after this one. Each message has it, because
	// agbox-agent prints messages only, and an answer may end before the inbox does.
	Left int `json:"left"`
}

func messageOf(m *agboxv1.AgentMessage) message {
	return message{
		Seq: m.GetSeq(), Kind: strings.TrimPrefix(m.GetKind().String(), "MESSAGE_KIND_"), From: m.GetFrom(), Stream: m.GetStream(),
		Key: m.GetKey(), Text: m.GetText(), Body: json.RawMessage(m.GetBody()), At: m.GetAt().AsTime().Format(time.RFC3339Nano),
	}
}

// recvBytes bounds the messages of one answer. As JSON they can be six times as long.
const recvBytes = 64 << 10

type recvFields struct {
	After uint64 `json:"after"`
	// NoWait answers without messages if there are none.
	NoWait bool `json:"no_wait"`
}

// recv acknowledges the messages of the agent up to a number that was given out, and answers
// with those after it. Without any it stays open, or is answered with none.
func (r *Runner) recv(ctx context.Context, a ledger.Agent, _ request, want recvFields) (any, bool, error) {
	if newest, err := r.ledger.NewestMessage(ctx, a.ID); err != nil {
		return nil, false, err
	} else if want.After > newest {
		// Accepted, it would hide the messages up to it that are still to come.
		return nil, false, fault.New(errdefs.ErrOutOfRange, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE,
			"There is no message %d in the inbox of agent %s (the newest is %d): acknowledge the highest number that you have received.", want.After, a.ID, newest).With("agent_id", a.ID)
	}
	if err := r.ledger.Acknowledge(ctx, a.ID, want.After); err != nil {
		return nil, false, err
	}
	if r.ledger.Unread(a.ID) == 0 && !r.ledger.Observes(a.ID) {
		return map[string]any{"messages": []message{}, "more": false}, !want.NoWait, nil
	}
	list, left, err := r.ledger.Messages(ctx, a.ID, want.After, recvBytes)
	if err != nil || len(list) == 0 {
		return nil, true, err
	}
	messages := make([]message, len(list))
	for i, m := range list {
		messages[i] = messageOf(m)
		messages[i].Left = left + len(list) - 1 - i
		if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_OBSERVATION {
			if messages[i].Body, err = r.observed(ctx, a.ID); err != nil {
				return nil, false, err
			}
		}
	}
	return map[string]any{"messages": messages, "more": left > 0}, false, nil
}

// observed is the body of the message that says what changed while an agent was paused. It is
// empty if the agent has gone on meanwhile.
func (r *Runner) observed(ctx context.Context, id string) (json.RawMessage, error) {
	a, _ := r.ledger.Agent(id)
	if a.PendingObservation() == 0 {
		return nil, nil
	}
	return json.Marshal(r.observe(ctx, a))
}
