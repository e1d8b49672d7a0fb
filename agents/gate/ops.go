package gate

import "slices"

// States are the states of an agent in which its program can ask for something.
var States = [...]string{"PENDING", "PLANNING", "ACQUIRING", "EXECUTING", "VERIFYING", "PAUSED"}

// Verdict says whether something is possible in a state.
type Verdict uint8

// The verdicts.
const (
	No Verdict = iota
	Yes
	// Reads means that it is possible for tools that only read.
	Reads
)

// Verdicts has a verdict for each of States.
type Verdicts [len(States)]Verdict

// By is who answers an op.
type By uint8

// Who answers.
const (
	// Supervisor answers also without a daemon.
	Supervisor By = iota
	// Daemon decides, and may be away for a while.
	Daemon
	// Others have to do something before the daemon answers. A drain ends such a request.
	Others
	// OfCall is no op: the kind of the call that the op gate asks for, or that call begins.
	OfCall
)

// Op is a row of Ops.
type Op struct {
	Name string
	By   By
	In   Verdicts
}

// What only tells or asks something is possible always, and so is what a paused agent needs to
// go on or to end. What acts on anything outside of the program is not possible while it is
// paused. While it plans it holds no resources, so it changes nothing: it asks its model, reads,
// and asks others by messages, which change nothing by themselves.
var (
	always    = Verdicts{Yes, Yes, Yes, Yes, Yes, Yes}
	notPaused = Verdicts{Yes, Yes, Yes, Yes, Yes, No}
	mayRead   = Verdicts{Yes, Reads, Reads, Yes, Yes, No}
	changes   = Verdicts{Yes, No, No, Yes, Yes, No}
	byKind    = Verdicts{}
)

// Ops are the ops of the agent socket: what the program of an agent can ask for, who answers, and
// in which states of the agent. Supervisor and daemon both apply it. An op without a row does not
// exist.
var Ops = []Op{
	{"hello", Supervisor, always},
	{"state", Supervisor, always},
	{"phase", Supervisor, notPaused},
	{"beat", Supervisor, always},
	{"usage", Supervisor, always},
	{"step", Supervisor, always},
	{"turn", Supervisor, always},
	{"checkpoint", Supervisor, always},
	{"context", Supervisor, always},
	{"gate", Supervisor, byKind},
	{"call", Supervisor, always}, // a report about a call that has begun; its begin is by its kind
	{"say", Supervisor, always},
	{"error", Supervisor, always},
	{"send", Supervisor, notPaused},
	{"observed", Supervisor, always},
	{"done", Supervisor, always},
	{"health", Supervisor, always},
	{"drained", Supervisor, always},
	{"spawn", Daemon, changes},
	{"wait", Others, always},
	{"kill", Daemon, changes},
	{"children", Daemon, always},
	{"acquire", Others, always},
	{"release", Daemon, always},
	{"recv", Others, always},
	{"open", Daemon, notPaused},
	{"close", Daemon, always},
	{"pause", Others, always},
	{"resumed", Daemon, always},
	{"llm", OfCall, notPaused},
	{"tool", OfCall, mayRead},
	{"network", OfCall, mayRead},
}

// find returns the row with a name, or one that is never possible and that nobody answers.
func find(name string) Op {
	if i := slices.IndexFunc(Ops, func(op Op) bool { return op.Name == name }); i >= 0 {
		return Ops[i]
	}
	return Op{By: OfCall}
}

// Names are the names of the ops.
func Names() (names []string) {
	for _, op := range Ops {
		if op.By != OfCall {
			names = append(names, op.Name)
		}
	}
	return names
}

// ByDaemon reports whether only the daemon answers an op.
func ByDaemon(op string) bool { return find(op).By == Daemon || Waits(op) }

// Waits reports whether an op is answered only once others have done something.
func Waits(op string) bool { return find(op).By == Others }

// HasVerdict reports whether an op, or a kind of calls, is possible in any state.
func HasVerdict(name string) bool { return find(name).In != byKind }

// May reports whether an op, or a kind of calls, is possible in a state. What is not in Ops is
// not. tool is the name of a tool, and reading are those that only read.
func May(name, state, tool string, reading []string) bool {
	i := slices.Index(States[:], state)
	if i < 0 {
		return false
	}
	verdict := find(name).In[i]
	return verdict == Yes || verdict == Reads && slices.Contains(reading, tool)
}

// Reading are the tools that only read, if a spec names no others.
var Reading = []string{
	"file_read", "read_file", "list_files", "list_dir", "search", "grep", "glob", "kubectl_get", "git_status", "git_diff", "git_log",
	"Read", "Grep", "Glob", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoWrite",
}
