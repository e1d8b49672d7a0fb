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
	RoleVolume  Role = "volume"
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
	// Service is the service's name; of a volume it is the volume's own. Empty for
	// other roles.
	Service string
}

// EngineInfo is what an engine says of itself.
type EngineInfo struct {
	// Version of the engine, for example "20.10.24".
	Version string
	// APIVersion that was negotiated, for example "1.41".
	APIVersion string
}

// Abilities are what an engine and its host can do of what a spec may ask for.
type Abilities struct {
	// Local tells that the engine runs on this host, so that its ports and devices
	// can be looked at from here.
	Local bool
	// Platform is the engine's own, for example "linux/amd64".
	Platform string
	// CPUs is the number of processors, Memory the size of the memory in bytes; 0: unknown.
	CPUs   int
	Memory int64
	// NoDiskLimit is why the size of a container cannot be limited, as a clause;
	// empty where it can, or where only a try can tell.
	NoDiskLimit string
	// NoGPUs is why there are no GPUs, as a clause; empty where there may be some.
	NoGPUs string
	// StartInterval tells whether healthchecks have one.
	StartInterval bool
}

// PullPolicy says when an image is pulled.
type PullPolicy int

// The policies; the zero value is PullIfMissing.
const (
	PullIfMissing PullPolicy = iota
	PullAlways
	PullNever
)

// ImageRequest is an image that is wanted.
type ImageRequest struct {
	// Ref is a name with tag or digest, or an image id.
	Ref    string
	Policy PullPolicy
	// Platform, for example "linux/arm64"; empty: the engine's own.
	Platform string
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
	// Platform is what the image is for, for example "linux/amd64".
	Platform string
}

// ListedImage is an image in a list.
type ListedImage struct {
	ID string
	// Names are its references with tags; empty for what a newer image took the
	// name of.
	Names []string
	// Size is that of all its layers in bytes, those shared with others included.
	Size      int64
	CreatedAt time.Time
}

// BuildOptions say how an image is built.
type BuildOptions struct {
	// Tags are the names that the image gets.
	Tags []string
	// Dockerfile is its path within the context; "Dockerfile" when empty.
	Dockerfile string
	Args       map[string]string
	// Target is the stage to stop at; the last one when empty.
	Target   string
	Platform string
	NoCache  bool
	// Pull looks for newer versions of the base images.
	Pull bool
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
	// Containers is how many it must have addresses for; 0: a few.
	Containers int
}

// Network is a network as it was seen.
type Network struct {
	Identity
	ID   string
	Name string
}

// VolumeSpec is a named volume to make. It lasts as long as its sandbox.
type VolumeSpec struct {
	Identity
	// Name in the engine; unique there.
	Name string
}

// Volume is a volume as it was seen. The name is its id.
type Volume struct {
	Identity
	Name string
}

// VolumeMount mounts a volume that was made before.
type VolumeMount struct {
	// Volume is the name in the engine.
	Volume, Target string
	ReadOnly       bool
}

// Tmpfs is a folder in memory, in which programs may be executed.
type Tmpfs struct {
	Target string
	// Size in bytes; 0: half of the host's memory.
	Size int64
	// Mode is that of the folder; 0: 01777.
	Mode uint32
}

// Healthcheck is what the engine runs in a container to learn whether it is well;
// a figure of 0 is the engine's default.
type Healthcheck struct {
	// Test is "NONE", or "CMD" and arguments, or "CMD-SHELL" and one command.
	Test                                          []string
	Interval, Timeout, StartPeriod, StartInterval time.Duration
	Retries                                       int
}

// Ulimit is a limit of setrlimit(2); -1 is unlimited.
type Ulimit struct {
	Name       string
	Soft, Hard int64
}

// DefaultPIDs bounds the processes and threads of a container whose limits do not:
// enough for a build on many cores, too few for a fork bomb to hurt the host.
const DefaultPIDs int64 = 4096

// Limits bound what a container uses; 0 is no limit, or the adapter's default.
type Limits struct {
	// NanoCPUs is in billionths of a processor.
	NanoCPUs int64
	// Memory in bytes, swap included: there is none beyond it.
	Memory int64
	// Disk is the size of the writable layer in bytes.
	Disk int64
	// PIDs is the most processes and threads.
	PIDs int64
	// Shm is the size of /dev/shm in bytes.
	Shm     int64
	Ulimits []Ulimit
	// GPUs is "all", a number, or device ids separated by commas; empty: none.
	GPUs string
}

// Security is what of the safe defaults a container gives up, or adds to them.
// The zero value is all of them.
type Security struct {
	// CapAdd and CapDrop are without "CAP_"; "ALL" is all of them.
	CapAdd, CapDrop   []string
	NewPrivileges     bool
	SeccompUnconfined bool
	// Devices are paths on the host, which are the same inside.
	Devices      []string
	Privileged   bool
	ReadOnlyRoot bool
}

// Mount binds a path of the host, which must exist. Mounts that come later on one
// side are not seen on the other. Read-only holds for mounts below it too where
// the engine can (API 1.44 or newer).
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
	// HostIP is the address to listen on; empty: 127.0.0.1.
	HostIP string
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
	Volumes   []VolumeMount
	Tmpfs     []Tmpfs
	Ports     []Port
	// Healthcheck replaces the image's; nil leaves that as it is. A primary has none.
	Healthcheck *Healthcheck
	Limits      Limits
	Security    Security
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

// The engine's words for what a healthcheck has found.
const (
	HealthStarting = "starting"
	Healthy        = "healthy"
	Unhealthy      = "unhealthy"
)

// PublishedPort is a port of a container as the engine has published it.
type PublishedPort struct {
	// Port inside, with its protocol: "tcp", "udp" or "sctp".
	Container uint16
	Protocol  string
	// HostIP and Host are where it is published. Before the start they are what was
	// asked for, and Host is 0 where the engine chooses.
	HostIP string
	Host   uint16
}

// Usage is what a container has used up to a moment. All is zero while it does not run.
type Usage struct {
	At time.Time
	// CPU is the time of all processors, since the start.
	CPU time.Duration
	// OnlineCPUs is the number of processors that it may run on.
	OnlineCPUs uint32
	// Memory in bytes, without what the kernel can drop at once. MemoryLimit is the
	// container's, or the host's memory.
	Memory, MemoryLimit uint64
	// Bytes since the start.
	NetReceived, NetSent  uint64
	BlockRead, BlockWrite uint64
	PIDs, PIDsLimit       uint64
}

// Container is a container as it was seen.
type Container struct {
	Identity
	ID    string
	Name  string
	State ContainerState
	// Detached tells that the container is attached to no network.
	Detached bool
	// Health is one of the words below; empty without a healthcheck, or while the
	// container does not run.
	Health string
	// Ports are what the container publishes. A list has those of running
	// containers only.
	Ports []PublishedPort
	// The rest is known from an inspection only, not from a list.

	// ExitCode counts when State is exited or dead.
	ExitCode  int
	OOMKilled bool
	// HealthOutput is what the newest healthcheck has written.
	HealthOutput string
	// Error is what the engine says of a failed start.
	Error                 string
	StartedAt, FinishedAt time.Time
}

// Inventory is everything in the engine that carries an install's label.
type Inventory struct {
	Containers []Container
	Networks   []Network
	Volumes    []Volume
}

// Empty tells whether there is nothing.
func (i Inventory) Empty() bool {
	return len(i.Containers)+len(i.Networks)+len(i.Volumes) == 0
}

// LogOptions select of a container's own output.
type LogOptions struct {
	// Tail is how many of the last lines to give; 0: all that is kept.
	Tail int
	// Follow goes on until the container has ended.
	Follow bool
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
