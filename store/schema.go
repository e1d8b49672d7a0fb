package store

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// SchemaVersion is the newest schema that this build reads and writes. A
// database with a higher number is refused.
const SchemaVersion uint32 = 3

// The bucket tree. Keys are ids (UTF-8) or numbers (8 bytes, big-endian).
// Values are protobuf messages or numbers (8 bytes, big-endian), as valuesOf declares.
//
//	sandbox-ids                      reserved sandbox ids, never removed
//	  {sandbox_id}                   -> int64, UnixNano of the reservation
//	exec-ids                         reserved exec ids, never removed
//	  {exec_id}                      -> int64, UnixNano of the reservation
//	sandbox-config                   one per sandbox that has a history
//	  {sandbox_id}                   -> agbox.v1.CreateSpec, resolved, without secrets
//	sandbox-deleted-at
//	  {sandbox_id}                   -> int64, UnixNano of the deletion
//	events:{sandbox_id}              history of one sandbox
//	  {sequence}                     -> agbox.v1.SandboxEvent
//	exec-config:{sandbox_id}
//	  {exec_id}                      -> agbox.v1.CreateExecRequest, without secrets
//	sandbox-secrets                  what sandbox-config has without
//	  {sandbox_id}                   -> store.v1.Sealed, with store.v1.Secrets
//	exec-secrets:{sandbox_id}        what exec-config has without
//	  {exec_id}                      -> store.v1.Sealed, with store.v1.Secrets
//	sandbox-keys                     request keys of sandboxes
//	  {request_key}                  -> store.v1.KeyOwner
//	sandbox-requests                 sandboxes that were created with a request key
//	  {sandbox_id}                   -> store.v1.Request
//	exec-keys                        request keys of execs that are not their ids; exec-config has all
//	  {request_key}                  -> store.v1.KeyOwner
//	exec-last-event:{sandbox_id}     index: newest event of each exec
//	  {exec_id}                      -> uint64, sequence in events:{sandbox_id}
//	event-order                      index: all events of all sandboxes in order
//	  {position}                     -> store.v1.EventRef
//	events-trimmed                   what was removed from the streams of events
//	  {sandbox_id}                   -> store.v1.Trimmed, of events:{sandbox_id}
//	  "*"                            -> store.v1.Trimmed, of event-order
//	  "agents:*"                     -> store.v1.Trimmed, of agent-event-order
//	  "agents:"{agent_id}            -> store.v1.Trimmed, of agent-events:{agent_id}, by positions
//	agent-ids                        reserved agent ids, never removed
//	  {agent_id}                     -> int64, UnixNano of the reservation
//	agent-config                     one per agent that has a history
//	  {agent_id}                     -> agbox.v1.AgentSpec, resolved
//	agent-work                       of agents that were spawned with one
//	  {agent_id}                     -> store.v1.AgentWork
//	agent-events:{agent_id}          history of one agent
//	  {sequence}                     -> agbox.v1.AgentEvent
//	agent-inbox:{agent_id}           messages that were not acknowledged
//	  {seq}                          -> agbox.v1.AgentMessage
//	agent-inbox-keys:{agent_id}      keys of the newest messages, also of acknowledged ones
//	  {digest}                       -> uint64, seq; the digest of sender, stream and key, in hexadecimal
//	agent-inbox-digests:{agent_id}   the same the other way round
//	  {seq}                          -> store.v1.MessageKey
//	agent-event-order                index: all events of all agents in order
//	  {position}                     -> store.v1.EventRef
//	pools                            templates of sandboxes that are made ahead
//	  {name}                         -> store.v1.Pool; its secrets are in sandbox-secrets, by its id
//	meta
//	  "meta"                         -> store.v1.Meta
//
// The first six buckets are the published contract. The others are our own.
// exec-last-event and event-order are indexes; indexSeedDatabase in migrate.go
// computes them from the first six. events-trimmed exists only after a removal, the three
// buckets of request keys only after a request with a key, those of secrets only after a
// request with one, and those of agents only after the first agent. A daemon that does not
// know agents leaves them alone.
var (
	bucketSandboxIDs      = []byte("sandbox-ids")
	bucketExecIDs         = []byte("exec-ids")
	bucketSandboxConfig   = []byte("sandbox-config")
	bucketSandboxDeleted  = []byte("sandbox-deleted-at")
	bucketEventOrder      = []byte("event-order")
	bucketEventsTrimmed   = []byte("events-trimmed")
	bucketSandboxKeys     = []byte("sandbox-keys")
	bucketSandboxRequests = []byte("sandbox-requests")
	bucketExecKeys        = []byte("exec-keys")
	bucketSandboxSecrets  = []byte("sandbox-secrets")
	bucketAgentIDs        = []byte("agent-ids")
	bucketAgentConfig     = []byte("agent-config")
	bucketAgentWork       = []byte("agent-work")
	bucketAgentOrder      = []byte("agent-event-order")
	bucketPools           = []byte("pools")
	bucketMeta            = []byte("meta")
	keyMeta               = []byte("meta")
	// keyAllTrimmed is not a valid sandbox id, so it cannot collide with one.
	keyAllTrimmed = []byte("*")
	// keyAgentsTrimmed is none either.
	keyAgentsTrimmed = []byte("agents:*")
)

// Name prefixes of the buckets of one sandbox or agent; its id follows. Ids never contain
// a colon.
const (
	prefixEvents        = "events:"
	prefixExecConfig    = "exec-config:"
	prefixExecLastEvent = "exec-last-event:"
	prefixExecSecrets   = "exec-secrets:"
	prefixAgentEvents   = "agent-events:"
	prefixInbox         = "agent-inbox:"
	prefixInboxKeys     = "agent-inbox-keys:"
	prefixInboxDigests  = "agent-inbox-digests:"
)

// valuesOf declares the values of each bucket, or of all whose names begin with the prefix: the
// message that they are, or nil for numbers.
var valuesOf = map[string]proto.Message{
	string(bucketSandboxIDs):      nil,
	string(bucketExecIDs):         nil,
	string(bucketSandboxConfig):   (*agboxv1.CreateSpec)(nil),
	string(bucketSandboxDeleted):  nil,
	prefixEvents:                  (*agboxv1.SandboxEvent)(nil),
	prefixExecConfig:              (*agboxv1.CreateExecRequest)(nil),
	string(bucketSandboxSecrets):  (*storev1.Sealed)(nil),
	prefixExecSecrets:             (*storev1.Sealed)(nil),
	string(bucketSandboxKeys):     (*storev1.KeyOwner)(nil),
	string(bucketSandboxRequests): (*storev1.Request)(nil),
	string(bucketExecKeys):        (*storev1.KeyOwner)(nil),
	prefixExecLastEvent:           nil,
	string(bucketEventOrder):      (*storev1.EventRef)(nil),
	string(bucketEventsTrimmed):   (*storev1.Trimmed)(nil),
	string(bucketAgentIDs):        nil,
	string(bucketAgentConfig):     (*agboxv1.AgentSpec)(nil),
	string(bucketAgentWork):       (*storev1.AgentWork)(nil),
	prefixAgentEvents:             (*agboxv1.AgentEvent)(nil),
	prefixInbox:                   (*agboxv1.AgentMessage)(nil),
	prefixInboxKeys:               nil,
	prefixInboxDigests:            (*storev1.MessageKey)(nil),
	string(bucketAgentOrder):      (*storev1.EventRef)(nil),
	string(bucketPools):           (*storev1.Pool)(nil),
	string(bucketMeta):            (*storev1.Meta)(nil),
}

func bucketEvents(sandboxID string) []byte        { return []byte(prefixEvents + sandboxID) }
func bucketExecConfig(sandboxID string) []byte    { return []byte(prefixExecConfig + sandboxID) }
func keyTrimmed(sandboxID string) []byte          { return []byte(sandboxID) }
func keyAgentTrimmed(agentID string) []byte       { return []byte("agents:" + agentID) }
func bucketAgentEvents(agentID string) []byte     { return []byte(prefixAgentEvents + agentID) }
func bucketInbox(agentID string) []byte           { return []byte(prefixInbox + agentID) }
func bucketInboxKeys(agentID string) []byte       { return []byte(prefixInboxKeys + agentID) }
func bucketInboxDigests(agentID string) []byte    { return []byte(prefixInboxDigests + agentID) }
func bucketExecLastEvent(sandboxID string) []byte { return []byte(prefixExecLastEvent + sandboxID) }
func bucketExecSecrets(sandboxID string) []byte   { return []byte(prefixExecSecrets + sandboxID) }

// inContract reports whether the published contract has a bucket of that name.
// Only such buckets may exist in a database without a meta bucket.
func inContract(name string) bool {
	switch name {
	case string(bucketSandboxIDs), string(bucketExecIDs),
		string(bucketSandboxConfig), string(bucketSandboxDeleted):
		return true
	}
	return strings.HasPrefix(name, prefixEvents) || strings.HasPrefix(name, prefixExecConfig)
}

// number encodes a sequence, position or time.
func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// parseNumber returns false for anything but 8 bytes.
func parseNumber(b []byte) (uint64, bool) {
	if len(b) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(b), true
}

func instant(t time.Time) []byte { return number(uint64(t.UnixNano())) }

// parseInstant returns the zero time for an invalid encoding.
func parseInstant(b []byte) time.Time {
	n, ok := parseNumber(b)
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, int64(n)).UTC()
}

func isNumber(value []byte) error {
	if len(value) != 8 {
		return fmt.Errorf("%d bytes instead of 8", len(value))
	}
	return nil
}

// keyText formats a key for people: a number in decimal, or a quoted id.
func keyText(key []byte) string {
	if n, ok := parseNumber(key); ok && key[0] == 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%q", key)
}
