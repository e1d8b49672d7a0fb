package gate

import "slices"

// States are the columns of Acts: the states of an agent in which its program can ask for something.
var States = [...]string{"PENDING", "PLANNING", "ACQUIRING", "EXECUTING", "VERIFYING", "PAUSED"}

// Verdict says whether an act is possible in a state.
type Verdict uint8

// The verdicts.
const (
	No Verdict = iota
	Yes
	// Reads means that it is possible for tools that only read.
	Reads
)

// Act is a row of Acts.
type Act struct {
	// Names are the ops of the agent socket. The ops gate and call are there by the kind of the
	// call that is asked for or begun: tool, llm, network; call is a report about one that has
	// begun.
	Names []string
	In    [len(States)]Verdict
}

// Acts is what the program of an agent may do in which state. Supervisor and daemon both apply
// it. An op without a row does not exist.
//
// What only tells or asks something is possible always, and so is what a paused agent needs to
// go on or to end. What acts on anything outside of the program is not possible while it is
// paused. While it plans it holds no resources, so it changes nothing: it asks its model, reads,
// and asks others by messages, which change nothing by themselves.
var Acts = []Act{
	{
		[]string{
			"hello", "state", "beat", "usage", "step", "turn", "context", "checkpoint", "say", "error", "observed", "done", "health", "drained", "call",
			"recv", "wait", "children", "acquire", "release", "close", "pause", "resumed",
		},
		[...]Verdict{Yes, Yes, Yes, Yes, Yes, Yes},
	},
	{[]string{"llm", "send", "phase", "open"}, [...]Verdict{Yes, Yes, Yes, Yes, Yes, No}},
	{[]string{"tool", "network"}, [...]Verdict{Yes, Reads, Reads, Yes, Yes, No}},
	{[]string{"spawn", "kill"}, [...]Verdict{Yes, No, No, Yes, Yes, No}},
}

// HasAct reports whether there is a row for an act.
func HasAct(name string) bool {
	return slices.ContainsFunc(Acts, func(a Act) bool { return slices.Contains(a.Names, name) })
}

// May reports whether an act is possible in a state. What is not in Acts is not. tool is the
// name of a tool, and reading are those that only read.
func May(name, state, tool string, reading []string) bool {
	i := slices.Index(States[:], state)
	for _, a := range Acts {
		if i < 0 || !slices.Contains(a.Names, name) {
			continue
		}
		return a.In[i] == Yes || a.In[i] == Reads && slices.Contains(reading, tool)
	}
	return false
}

// Reading are the tools that only read, if a spec names no others.
var Reading = []string{
	"file_read", "read_file", "list_files", "list_dir", "search", "grep", "glob", "kubectl_get", "git_status", "git_diff", "git_log",
	"Read", "Grep", "Glob", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoWrite",
}
