package agentsocket

import (
	"encoding/json"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

// Config configures a Server.
type Config struct {
	// Dir is the folder of the socket. It is made if it does not exist.
	Dir string
	// Helper is the program that is in the PATH of incarnations as agbox-agent.
	Helper string
	// Logs is where the journals are, which belong to Owner and count towards Quota.
	Logs  *logs.Dir
	Owner logs.Owner
	Quota *logs.Quota
	// KillCall kills the processes of a tool: those that have the mark of the call in their
	// environment, and what they have started. It may be nil.
	KillCall func(mark string)
	// Disk runs fn when there is room. It bounds the threads that wait for the disk.
	Disk func(fn func())
	// As has files looked at with the rights of the user of an incarnation.
	As As
	// Caller returns the exec of the process that has made a connection, or "" if it is of
	// none. If known is false, nobody can tell, and the token alone decides. Nil never tells.
	Caller func(c *net.UnixConn) (execID string, known bool)
	// Look returns what the processes of an exec do.
	Look func(execID string) Activity
}

// Server takes the reports of all incarnations of a sandbox. It listens from the first
// incarnation on, so that other sandboxes pay nothing for it.
type Server struct {
	cfg Config
	// work counts the goroutines of the listener and its connections.
	work sync.WaitGroup

	// starting makes callers of Begin wait until the socket is there.
	// Held across I/O: an incarnation must not start before it can connect.
	starting sync.Mutex

	// closing is closed when the server is.
	closing chan struct{}
	// burstGap is the constant of that name, but in tests.
	burstGap time.Duration

	// mu guards the fields below, and incarnation.pulse.
	// Held across I/O: the deadlines and ends of connections, neither of which waits. Both
	// must follow the order in which connections change their owner.
	mu        sync.Mutex
	listener  *net.UnixListener
	closed    bool
	byToken   map[string]*incarnation
	byExec    map[string]string // the tokens
	conns     conns
	followers map[*follower]struct{}
}

// Access is what the program of an incarnation needs to report.
type Access struct {
	socket, token, bin string
	// work is empty if the agent has none.
	work string
}

// Boot says whose incarnation an exec is.
type Boot struct {
	ExecID, AgentID string
	// Number is that of the incarnation, from 1.
	Number    uint32
	Bounds    Bounds
	Heartbeat Heartbeat
	// Phase is the one in which the incarnation begins; empty means EXECUTING.
	Phase string
	// Work is what the agent has to do, or nil.
	Work []byte
	// Calls are how long calls may take.
	Calls probes.Limits
	// Observation is that which the program must take before it reports that it is ready. 0
	// if there is none.
	Observation uint64
	// Hostname is what the program has in HOSTNAME.
	Hostname string
	// User is the one of its program, as in StartRequest.
	User string
	// Files are those of what the agent holds or asks for.
	Files []string
	// Checkpoint is the number of the agent's newest checkpoint.
	Checkpoint uint64
	// Model is the one that the agent was given. OutputTokens are those of earlier
	// incarnations.
	Model        string
	OutputTokens uint64
	// JournalBytes is how large its journal may become. 0 means journal.MaxJournal.
	JournalBytes uint64
	// Redactor takes the values of secret variables out of what it says; nil takes nothing.
	Redactor *logs.Redactor
}

// incarnation is a running incarnation.
type incarnation struct {
	server          *Server
	execID, agentID string
	user, hostname  string
	number          uint32
	bounds          Bounds
	journalMax      int64  // bytes
	observation     uint64 // Boot.Observation
	redactor        *logs.Redactor
	calls           openCalls
	results         results

	// mu guards the fields below.
	// Held across I/O: each row is written after the rows that it follows, and end must
	// wait for a row that is being written.
	mu      sync.Mutex
	sum     journal.Summary
	context gate.Context
	file    *logs.Journal // nil before the first row
	over    bool
	armed   bool // a beat is in the journal
	watched watched
	// phased means that the program has to do with phases: it has reported one, or asked for
	// what depends on them.
	phased bool
	beats  *logs.Beat // nil before the first
	kept   time.Time  // of the beat on disk

	checkpoints
	heartbeat Heartbeat
	// done is closed at the end, draining when a drain begins.
	done, draining chan struct{}

	// The fields below are guarded by Server.mu.

	pulse pulse
	// alarm measures the silence; nil before it counts. probing means that there is a
	// goroutine of probe.
	alarm   *time.Timer
	probing bool
	// abort is when it must abort its calls, if it is drained, else zero.
	abort time.Time
	pause pause
	requests
}

// openCalls are the calls of an incarnation that have begun and not ended.
type openCalls struct {
	limits probes.Limits

	// mu guards the fields below.
	// Held across I/O: a call is open when its row is in the journal.
	mu   sync.Mutex
	byID map[string]*openCall
	// begun is the number of calls so far. It makes the ids of those without one.
	begun uint64
	// recorded is how many bytes of results there were.
	recorded int64
	// timer calls expire at the next deadline.
	timer *time.Timer
	over  bool
	// until is when all calls are to be aborted because the incarnation is drained. It is zero
	// if it is not.
	until time.Time
}

// openCall is a call that has begun and not ended.
type openCall struct {
	probes.Call
	id string
	// mark is in the environment of the processes of "agbox-agent tool", see Config.KillCall.
	mark string
	// abort is why it is to be aborted; empty if it is not.
	abort string
	// done is closed when it is to be aborted or has ended.
	done chan struct{}
}

// checkpoints is the part of an incarnation that saves checkpoints.
type checkpoints struct {
	// saving is set while a request saves a checkpoint. Others are refused meanwhile.
	saving atomic.Bool
	// before is the number of the agent's newest checkpoint when the incarnation began.
	before       uint64
	model        string
	outputTokens uint64
}

// Bounds say which calls an incarnation may make, so that this is decided without a daemon.
type Bounds struct {
	Context gate.Limits
	// Budget is that of the agent. Former is what earlier incarnations have used of it, and
	// Crashes how many of them have crashed.
	Budget  gate.Budget
	Former  gate.Amount
	Crashes uint32
	// Children is what the children of the agent have of its budget, and Spent the part of it
	// that ended children have used, which does not come back. Server.mu guards both.
	Children, Spent gate.Amount
	// Reading are the tools that only read.
	Reading []string
}

// Pause says that the agent of an incarnation is paused.
type Pause struct {
	// Mark is higher than that of each earlier pause. 0 means that it is not paused.
	Mark uint64
	// Message says why.
	Message string
	// Observation is what changed meanwhile, a JSON object, if the agent is woken and goes on
	// in Phase once the program has it.
	Observation []byte
	Phase       string
}

// pause is what an incarnation was told of a pause. Server.mu guards it.
type pause struct {
	Pause
	// taken is the newest mark of a pause from which the agent has gone on.
	taken uint64
	// given is the newest observation that the program has got and not answered yet.
	given uint64
	// lost means that the agent has not got the leases that it has asked for, and is paused.
	lost bool
}

// Request is what a program asks of the daemon.
type Request struct {
	// Number counts the requests of the incarnation from 1.
	Number uint64
	Op     string
	// Body is the JSON object of the request, without its op, id and token.
	Body []byte
}

// Decision is the daemon's answer: the Result, a JSON object, or the Code and the Message of
// a refusal.
type Decision struct {
	Result        json.RawMessage
	Code, Message string
}

// openRequest is a request that was not answered yet.
type openRequest struct {
	Request
	// answer has room for one.
	answer chan Decision
}

// requests are the open requests of an incarnation. Server.mu guards them.
type requests struct {
	pace  pace
	asked uint64 // the number of the newest one
	open  []*openRequest
}

// askedLocked reports whether there is an open request of an op.
func (r *requests) askedLocked(op string) bool {
	return slices.ContainsFunc(r.open, func(o *openRequest) bool { return o.Op == op })
}

// results is the file of an incarnation with the results that are too long for its journal.
type results struct {
	// mu guards the fields below.
	// Held across I/O: the first result makes the file, and others wait for that.
	mu   sync.Mutex
	file *logs.Results
	// next is where the next result begins.
	next int64
	// shut means that there is no file, or no more.
	shut bool
}

const (
	// maxWatched is more files than an agent can hold and ask for.
	maxWatched = 128
	// maxPath bounds their paths, in bytes.
	maxPath = 512
	// maxSummed is the size of the largest file whose content is looked at, in bytes.
	maxSummed = 1 << 20
	// cgroup is the control group of the container.
	cgroup = "/sys/fs/cgroup"
)

// As runs fn with the rights over files of a user, whom it takes as a StartRequest does.
type As func(user string, fn func() error) error

// watched are the files of what an agent holds or asks for. The goroutine of a request uses
// them, under incarnation.mu.
type watched []string

// Heartbeat says what is done about an incarnation that does not beat.
type Heartbeat struct {
	// Silences are the times of silence at which followers are told, ascending.
	Silences []time.Duration
	// Required means that the silence counts from the start. Otherwise the first beat begins
	// it.
	Required bool
	// Interval is the time between two beats. HungAfter is the silence at which the processes
	// are looked at.
	Interval, HungAfter time.Duration
	// Durable is how often the newest beat is written to disk.
	Durable time.Duration
}

// Activity is what the processes of an exec do.
type Activity struct {
	// Stopped means that none of them can run: all are stopped or zombies, or there is none.
	Stopped bool
	// Work changes when one of them uses the processor, reads or writes, begins or ends.
	Work uint64
}

// follower has the channels that wake a call of Follow: after each change, and after each
// request, which need not wait until newsEvery has passed.
type follower struct{ changed, asked chan struct{} }

// pulse is what followers are told about an incarnation. Server.mu guards it.
type pulse struct {
	rows      uint64
	lifecycle string
	begun     time.Time
	// beat is the last beat, or zero.
	beat time.Time
	// lag and poolEmpty are of the newest beat. ready is the result of the readiness probe.
	lag       time.Duration
	poolEmpty bool
	ready     *bool
	// heap is of the newest beat that has it, in MB.
	heap *uint64
	// changes counts the changes that are more than a beat. beats counts the beats.
	changes, beats uint64
	// silences is the number of Heartbeat.Silences that have passed. save means that it was
	// UNHEALTHY, and has saved no checkpoint since.
	silences int
	save     bool
	hung     bool
	ended    bool
}

// conn is a connection to the agent socket. It has at most maxLine bytes, a goroutine, and
// another one during a burst of requests.
type conn struct {
	*net.UnixConn
	// exec is that of the process that has made the connection. unknown means that nobody can
	// tell. Both are set before the first request.
	exec    string
	unknown bool
	// owner is the incarnation that it belongs to, or nil. Server.mu guards it.
	owner *incarnation
	// torn means that a part of a request did not come, so that what follows cannot be read.
	// The goroutine that answers uses it.
	torn bool
}

// conns has the open connections. Server.mu guards it.
type conns struct {
	// left has those of incarnations that have ended, and fresh those that never belonged to
	// one, oldest first.
	left, fresh []*conn
	owned       map[*incarnation][]*conn
}

// pace holds requests back that follow each other too fast. Server.mu guards it.
type pace struct {
	// due is when the requests so far would end at the pace.
	due time.Time
}
