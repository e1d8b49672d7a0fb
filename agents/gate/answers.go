package gate

import "encoding/json"

// Child is an agent as its parent sees it. It is the answer to kill and, for the stream agent:NAME,
// to open and close.
type Child struct {
	AgentID string `json:"agent_id"`
	Name    string `json:"name,omitempty"`
	Title   string `json:"title,omitempty"`
	// State is the word for it, as "agbox agent ls" shows it. Over means that it has ended.
	State   string `json:"state"`
	Over    bool   `json:"over"`
	Message string `json:"message,omitempty"`
}

// Children is the answer to children and wait.
type Children struct {
	Children []Child `json:"children"`
}

// Spawned is the answer to spawn.
type Spawned struct {
	Child
	// Sandbox is new or shared, and SandboxID is the sandbox in which the child runs.
	Sandbox   string `json:"sandbox"`
	SandboxID string `json:"sandbox_id"`
	// Border says of the root of a stack what its border does, and Notice what that means.
	Border string `json:"border,omitempty"`
	Notice string `json:"notice,omitempty"`
}

// Lease is a resource in the request acquire, or in an answer.
type Lease struct {
	Resource string `json:"resource"`
	// Mode is exclusive, which it is if it is empty, or shared.
	Mode string `json:"mode"`
	// Fence is the fencing number of a resource that the agent holds.
	Fence uint64 `json:"fence,omitempty"`
}

// Leases is the answer to release: all that the agent holds.
type Leases struct {
	Leases []Lease `json:"leases"`
}

// Acquired is the answer to acquire.
type Acquired struct {
	// Verdict is GRANTED, WAIT or DIE; or OBSERVE, if the agent was woken while its program
	// waits: then the program takes the observation and asks again, with its number.
	Verdict string `json:"verdict"`
	Phase
	Leases
	// Message says who has what the agent asks for.
	Message string `json:"message,omitempty"`
	// Observation is set with OBSERVE.
	Observation json.RawMessage `json:"observation,omitempty"`
}

// Phase is the answer to resumed, and to pause if the agent has gone on before it is answered.
type Phase struct {
	// Phase is the state of the agent. Its supervisor takes it over.
	Phase string `json:"phase"`
}

// Streams is the answer to open and close.
type Streams struct {
	Streams []string `json:"streams"`
}

// CallState is the answer to call.
type CallState struct {
	Invocation string `json:"invocation"`
	Mark       string `json:"mark"`
	// Abort is why the call is to be aborted, and Class what kind of error that is.
	Abort string `json:"abort,omitempty"`
	Class string `json:"class,omitempty"`
	// Ended means that the call has ended.
	Ended bool `json:"ended,omitempty"`
	// DeadlineMS is the time until the call is to be aborted if nothing more is reported. 0
	// means that it has no limit.
	DeadlineMS int64 `json:"deadline_ms,omitempty"`
}

// Health is the answer to health.
type Health struct {
	State    string `json:"state"`
	SilentMS int64  `json:"silent_ms"`
	Alive    bool   `json:"alive"`
	Ready    bool   `json:"ready"`
}
