// Package runtime holds the words in which the daemon speaks with a container
// engine: what to make, and what was seen. It is data only; the Engine interface
// stands with its consumer, daemon/reconcile.
//
// Errors of an engine carry a class of github.com/containerd/errdefs:
// ErrNotFound, ErrConflict, ErrAlreadyExists, ErrUnavailable (the engine did not
// answer or a deadline passed: look before you retry), ErrInvalidArgument,
// ErrResourceExhausted, ErrInternal. Where a person must act they are
// fault.Errors.
package runtime

import "time"

// Role tells what a container or network is to its sandbox.
type Role string

// The roles, as they stand in labels.
const (
	RolePrimary Role = "primary"
	RoleService Role = "service"
	RoleNetwork Role = "network"
)

// Identity says whose an engine object is. Labels carry it.
type Identity struct {
	// InstallID is the random id of the data directory.
	InstallID string
	SandboxID string
	// Nonce is the sandbox's random mark: with it an object is ours, without it
	// the labels were spoofed or belong to an earlier life.
	Nonce string
	Role  Role
	// Service is the service's name; empty for other roles.
	Service string
}

// EngineInfo is what an engine says of itself.
type EngineInfo struct {
	// Version of the engine, for example "20.10.24".
	Version string
	// APIVersion that was negotiated, for example "1.41".
	APIVersion string
}

// Image is what the daemon needs to know of an image.
type Image struct {
	// ID is the content id; containers are created from it, so that a tag that
	// moves changes nothing.
	ID         string
	Entrypoint []string
	Cmd        []string
	Env        []string
	// User is the image's USER; empty means root.
	User string
	// WorkingDir is the image's WORKDIR; empty means "/".
	WorkingDir string
}

// PullProgress is how far a pull has come.
type PullProgress struct {
	LayersDone, LayersTotal int
	// Bytes downloaded so far and in all, as far as the engine has said.
	BytesDone, BytesTotal int64
}

// NetworkSpec is a network to make.
type NetworkSpec struct {
	Identity
	// Name in the engine; names are not unique there, so the result's id counts.
	Name string
}

// Network is a network as it was seen.
type Network struct {
	Identity
	ID   string
	Name string
}

// Mount binds a path of the host.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Port publishes a port of the container.
type Port struct {
	// Container is the port inside, 1 to 65535.
	Container uint16
	// Host is the port outside; 0 lets the engine choose.
	Host uint16
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string
}

// ContainerSpec is a container to make. The adapter adds the safe defaults of
// every container by itself.
type ContainerSpec struct {
	Identity
	// Name in the engine; unique there.
	Name     string
	Hostname string
	// ImageID is the Image.ID to create from.
	ImageID string
	// Entrypoint replaces the image's; Cmd follows it.
	Entrypoint, Cmd []string
	// Env is "KEY=value", over the image's.
	Env []string
	// User of PID 1, for example "0:0".
	User       string
	WorkingDir string
	// NetworkID is the network to attach to.
	NetworkID string
	Mounts    []Mount
	Ports     []Port
	// StopTimeout is the time between the stop signal and the kill.
	StopTimeout time.Duration
}

// ContainerState is the engine's word for a container's condition.
type ContainerState string

// The engine's words.
const (
	StateCreated    ContainerState = "created"
	StateRunning    ContainerState = "running"
	StatePaused     ContainerState = "paused"
	StateRestarting ContainerState = "restarting"
	StateRemoving   ContainerState = "removing"
	StateExited     ContainerState = "exited"
	StateDead       ContainerState = "dead"
)

// Container is a container as it was seen.
type Container struct {
	Identity
	ID    string
	Name  string
	State ContainerState
	// Detached tells that the container is attached to no network.
	Detached bool
	// The rest is known from an inspection only, not from a list.

	// ExitCode counts when State is exited or dead.
	ExitCode  int
	OOMKilled bool
	// Health is starting, healthy or unhealthy; empty without a healthcheck.
	Health string
	// Error is what the engine says of a failed start.
	Error                 string
	StartedAt, FinishedAt time.Time
}

// Inventory is everything in the engine that carries an install's label.
type Inventory struct {
	Containers []Container
	Networks   []Network
}

// Event is a hint that something in the engine changed; never a fact to act on.
type Event struct {
	Identity
	// Action is the engine's word, for example "die", "start", "destroy", "oom".
	Action string
	// ObjectID is the id of the container or network.
	ObjectID string
	Time     time.Time
}
