package agents

import (
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// MaxStreams is how many streams an agent can have open.
const MaxStreams = 64

// Opens reports whether the agent gets the messages of a stream.
func (r Record) Opens(stream string) bool {
	_, open := slices.BinarySearch(r.Streams, stream)
	return open
}

func (r Record) withStream(stream string) Record {
	if i, open := slices.BinarySearch(r.Streams, stream); !open {
		r.Streams = slices.Insert(slices.Clone(r.Streams), i, stream)
	}
	return r
}

func (r Record) withoutStream(stream string) []string {
	i, open := slices.BinarySearch(r.Streams, stream)
	if !open {
		return r.Streams
	}
	return slices.Delete(slices.Clone(r.Streams), i, i+1)
}

// StreamOpened is the event of an agent that gets the messages of a stream from now on.
func StreamOpened(stream string) *agboxv1.AgentEvent {
	return ofStream(agboxv1.AgentEventType_AGENT_OPENED, stream)
}

// StreamClosed is the event of an agent that gets no more messages of a stream.
func StreamClosed(stream string) *agboxv1.AgentEvent {
	return ofStream(agboxv1.AgentEventType_AGENT_CLOSED, stream)
}

func ofStream(typ agboxv1.AgentEventType, stream string) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{Type: typ, Details: &agboxv1.AgentEvent_Hold{Hold: &agboxv1.AgentHold{Stream: stream}}}
}
