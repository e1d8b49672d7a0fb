// Package runtime has the data types that the daemon exchanges with a container
// engine: specs of objects to create, and observations of existing ones. The
// Engine interface is declared by its consumer, daemon/reconcile.
//
// Errors of an engine carry a class of github.com/containerd/errdefs:
// ErrNotFound, ErrConflict, ErrAlreadyExists, ErrUnavailable (the engine did not
// answer or a deadline passed; the call may have taken effect, so inspect before
// a retry), ErrInvalidArgument, ErrResourceExhausted, ErrInternal. Errors that a
// person must act on are fault.Errors.
package runtime

import (
	"cmp"
	"io"
	"time"
)

// Role is the function of an engine object in its sandbox.
type Role string

// The roles, with their values in labels.
const (
	RolePrimary Role = "primary"
	RoleService Role = "service"
	RoleNetwork Role = "network"
	RoleVolume  Role = "volume"
	// RoleImageReader is a container that never starts. The daemon reads files of an
	// image from it and removes it.
	RoleImageReader Role = "image-reader"
	// RoleReclaimer is a container that removes what root in the sandbox has put into the
	// folders of the host and the daemon's user cannot remove.
	RoleReclaimer Role = "reclaimer"
)

// NoNetwork as a ContainerSpec.NetworkID gives the container a loopback interface only.
const NoNetwork = "none"

// Identity says which sandbox an engine object belongs to. It is stored in labels.
type Identity struct {
	// InstallID is the random id of the data directory.
	InstallID string
	SandboxID string
	// Nonce is a random value chosen for the sandbox. An object with another nonce does
	// not belong to the sandbox: its labels were spoofed, or an earlier sandbox
	// with the same id made it.
	Nonce string
	Role  Role
	// Service is the name of the service, or of the volume for RoleVolume. It is
	// empty for other roles.
	Service string
}

// EngineInfo identifies an engine.
type EngineInfo struct {
	// ID is what the engine calls itself, and Root the folder of its data. Two engines of one
	// host may have the same id, and one that lost its data may keep both.
	ID, Root string
	// Version of the engine, for example "20.10.24".
	Version string
	// APIVersion is the negotiated version of the API, for example "1.41".
	APIVersion string
	// Memory is the size of the memory of the engine's host in bytes; 0 means unknown.
	Memory int64
	// RootUID and RootGID are the host's ids of root in containers. They are 0 unless the
	// engine gives containers user namespaces (userns-remap).
	RootUID, RootGID int
}

// Remapped reports whether root in containers is an ordinary user of the host.
func (i EngineInfo) Remapped() bool { return i.RootUID != 0 }

// Abilities says which optional features of a spec an engine and its host support.
type Abilities struct {
	// Local is true if the engine runs on this host, so that the daemon can check
	// ports and devices itself.
	Local bool
	// Platform is that of the engine, for example "linux/amd64".
	Platform string
	// CPUs is the number of processors; 0 means unknown.
	CPUs int
	// Memory is the size of the host's memory in bytes; 0 means unknown.
	Memory int64
	// NoDiskLimit is a clause that says why the size of a container cannot be
	// limited. It is empty if it can be, or if only an attempt can show that.
	NoDiskLimit string
	// NoGPUs is a clause that says why there are no GPUs. It is empty if there may
	// be some.
	NoGPUs string
	// StartInterval is true if healthchecks support a start interval.
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

// ImageRequest names an image and says whether to pull it.
type ImageRequest struct {
	// Ref is a name with tag or digest, or an image id.
	Ref    string
	Policy PullPolicy
	// Platform is for example "linux/arm64"; empty means that of the engine.
	Platform string
}

// Image has the properties of an image that the daemon uses.
type Image struct {
	// ID is the content id. Containers are created from it, so a moved tag does
	// not change them.
	ID         string
	Entrypoint []string
	Cmd        []string
	Env        []string
	// User is the image's USER; empty means root.
	User string
	// WorkingDir is the image's WORKDIR; empty means "/".
	WorkingDir string
	// Platform is that of the image, for example "linux/amd64".
	Platform string
}

// ListedImage is an image in a list.
type ListedImage struct {
	ID string
	// Names are its tagged references. It is empty if newer images took all its names.
	Names []string
	// Parent is the id of the image that it was built on; empty if that is unknown.
	Parent string
	// Used is set if a container, which need not run, was made from it.
	Used bool
	// Size is the sum of all its layers in bytes, including shared layers.
	Size      int64
	CreatedAt time.Time
}

// BuildOptions says how to build an image.
type BuildOptions struct {
	// Tags are the names to give to the image.
	Tags []string
	// Dockerfile is its path within the context; empty means "Dockerfile".
	Dockerfile string
	Args       map[string]string
	// Target is the last stage to build; empty means the last one in the file.
	Target   string
	Platform string
	NoCache  bool
	// Pull checks for newer versions of the base images.
	Pull bool
}

// PullProgress is the progress of a pull.
type PullProgress struct {
	LayersDone, LayersTotal int
	// BytesDone and BytesTotal count downloaded bytes of the layers whose size the
	// engine has reported so far.
	BytesDone, BytesTotal int64
}

// NetworkSpec describes a network to create.
type NetworkSpec struct {
	Identity
	// Name in the engine. Names need not be unique there, so use the returned id.
	Name string
	// Internal means that nothing leads out of it, or into it.
	Internal bool
	// Containers is the number of containers that need an address; 0 means a few.
	Containers int
}

// Network is an observed network.
type Network struct {
	Identity
	ID   string
	Name string
	// Interface is the name of its interface on the engine's host. The address of the host
	// in this network belongs to it.
	Interface string
}

// VolumeSpec describes a named volume to create. It is removed with its sandbox.
type VolumeSpec struct {
	Identity
	// Name in the engine; unique there.
	Name string
}

// Volume is an observed volume. Its name is its id.
type Volume struct {
	Identity
	Name string
}

// VolumeMount mounts an existing volume.
type VolumeMount struct {
	// Volume is the name in the engine.
	Volume, Target string
	ReadOnly       bool
}

// Tmpfs mounts a directory in memory, in which programs may be executed.
type Tmpfs struct {
	Target string
	// Size in bytes; 0 means half of the host's memory.
	Size int64
	// Mode is the permission mode of the directory; 0 means 01777.
	Mode uint32
}

// Healthcheck is the command that the engine runs in a container to check its
// health. A number or duration of 0 means the engine's default.
type Healthcheck struct {
	// Test is "NONE", or "CMD" and arguments, or "CMD-SHELL" and one command.
	Test                                          []string
	Interval, Timeout, StartPeriod, StartInterval time.Duration
	Retries                                       int
}

// Ulimit is a limit of setrlimit(2); -1 means unlimited.
type Ulimit struct {
	Name       string
	Soft, Hard int64
}

// DefaultPIDs is the limit on processes and threads of a container without a
// limit of its own. It suffices for a build on many cores, and keeps a fork bomb
// from harming the host.
const DefaultPIDs int64 = 4096

// Limits are the resource limits of a container. 0 means no limit, except where
// a field says otherwise.
type Limits struct {
	// NanoCPUs is in billionths of a processor.
	NanoCPUs int64
	// Memory in bytes, including swap: the container gets no swap in addition.
	Memory int64
	// MemoryByDefault means that the daemon chose Memory, not the spec. It is only shown.
	MemoryByDefault bool
	// Disk is the size of the writable layer in bytes.
	Disk int64
	// PIDs is the maximum number of processes and threads; 0 means DefaultPIDs.
	PIDs int64
	// Shm is the size of /dev/shm in bytes; 0 means the engine's default.
	Shm     int64
	Ulimits []Ulimit
	// GPUs is "all", a number, or device ids separated by commas; empty means none.
	GPUs string
}

// Security says how a container deviates from the safe defaults. The zero value
// keeps all of them.
type Security struct {
	// CapAdd and CapDrop are names without "CAP_"; "ALL" means all capabilities.
	CapAdd, CapDrop []string
	// NewPrivileges allows processes to gain privileges, for example with setuid.
	NewPrivileges     bool
	SeccompUnconfined bool
	// Devices are paths on the host. They have the same paths in the container.
	Devices      []string
	Privileged   bool
	ReadOnlyRoot bool
}

// Mount binds a path of the host, which must exist. Mounts that are made later on
// one side are not visible on the other. With API 1.44 or newer, ReadOnly also
// applies to mounts below the source.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Port publishes a port of the container.
type Port struct {
	// Container is the port in the container, 1 to 65535.
	Container uint16
	// Host is the port on the host; 0 lets the engine choose.
	Host uint16
	// Protocol is "tcp", "udp" or "sctp"; empty means "tcp".
	Protocol string
	// HostIP is the address to listen on; empty means 127.0.0.1.
	HostIP string
}

// ContainerSpec describes a container to create. The adapter adds the safe
// defaults that apply to every container.
type ContainerSpec struct {
	Identity
	// Name in the engine; unique there.
	Name     string
	Hostname string
	// ImageID is the Image.ID to create from.
	ImageID string
	// Entrypoint replaces the image's; Cmd follows it.
	Entrypoint, Cmd []string
	// Env has entries of the form "KEY=value". They take precedence over the image's.
	Env []string
	// User of PID 1, for example "0:0".
	User       string
	WorkingDir string
	// NetworkID is the network to attach to, or NoNetwork.
	NetworkID string
	// Alias is a name by which other containers of the network find this one; empty means
	// none. A service is found by its name.
	Alias string
	// NoNames means that only names of the network are resolved.
	NoNames bool
	// HostAlias makes the name host.docker.internal lead to the engine's host.
	HostAlias bool
	Mounts    []Mount
	Volumes   []VolumeMount
	Tmpfs     []Tmpfs
	Ports     []Port
	// Healthcheck replaces the image's; nil keeps the image's. A primary never has one.
	Healthcheck *Healthcheck
	Limits      Limits
	Security    Security
	// StopTimeout is the time between the stop signal and the kill.
	StopTimeout time.Duration
}

// ContainerState is a container's state, in the engine's vocabulary.
type ContainerState string

// The states.
const (
	StateCreated    ContainerState = "created"
	StateRunning    ContainerState = "running"
	StatePaused     ContainerState = "paused"
	StateRestarting ContainerState = "restarting"
	StateRemoving   ContainerState = "removing"
	StateExited     ContainerState = "exited"
	StateDead       ContainerState = "dead"
)

// The results of a healthcheck, in the engine's vocabulary.
const (
	HealthStarting = "starting"
	Healthy        = "healthy"
	Unhealthy      = "unhealthy"
)

// PublishedPort is a port that the engine publishes for a container.
type PublishedPort struct {
	// Container is the port in the container.
	Container uint16
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string
	// HostIP and Host are the address and port on the host. Before the start they
	// are the requested ones, and Host is 0 if the engine is to choose.
	HostIP string
	Host   uint16
}

// Usage is the resource usage of a container at a point in time. It is zero
// while the container does not run.
type Usage struct {
	At time.Time
	// CPU is the processor time since the start, summed over all processors.
	CPU time.Duration
	// Memory is in bytes, without the inactive page cache, which the kernel can
	// reclaim at once. MemoryLimit is the container's limit, or the host's memory.
	Memory, MemoryLimit uint64
	// NetReceived and NetSent are bytes since the start, over all networks.
	NetReceived, NetSent uint64
	// BlockRead and BlockWrite are bytes since the start, over all block devices.
	BlockRead, BlockWrite uint64
	// PIDsLimit is 0 if there is no limit.
	PIDs, PIDsLimit uint64
}

// MadeLimits are the limits that a container was made with. They are stored in a label.
// The zero value means unknown.
type MadeLimits struct {
	// Memory in bytes; 0 means no limit.
	Memory int64
	// MemoryByDefault means that the daemon chose Memory, not the spec.
	MemoryByDefault bool
	// PIDs is the maximum number of processes and threads.
	PIDs int64
}

// Made returns the limits that a container with these Limits is made with.
func (l Limits) Made() MadeLimits {
	return MadeLimits{Memory: l.Memory, MemoryByDefault: l.MemoryByDefault, PIDs: cmp.Or(l.PIDs, DefaultPIDs)}
}

// Container is an observed container.
type Container struct {
	Identity
	ID    string
	Name  string
	State ContainerState
	// NetworkID is the network that the container was created for.
	NetworkID string
	// Limits are those that the container was made with.
	Limits MadeLimits
	// Detached is true if the container is attached to no network.
	Detached bool
	// Health is HealthStarting, Healthy or Unhealthy. It is empty without a
	// healthcheck, or while the container does not run.
	Health string
	// Ports are the published ports. A list has them only for running containers.
	Ports []PublishedPort
	// Only an inspection fills the following fields; a list leaves them zero.

	// ImageID is the image that it was created from.
	ImageID string
	// PID is the id of the first process, in the engine's PID namespace; 0 if the
	// container does not run.
	PID int
	// ExitCode is valid if State is StateExited or StateDead.
	ExitCode  int
	OOMKilled bool
	// HealthOutput is the output of the newest run of the healthcheck.
	HealthOutput string
	// Error is the engine's message about a failed start.
	Error                 string
	StartedAt, FinishedAt time.Time
}

// Inventory lists everything in the engine that carries the labels of an install.
type Inventory struct {
	Containers []Container
	Networks   []Network
	Volumes    []Volume
}

// Empty reports whether the inventory lists nothing.
func (i Inventory) Empty() bool {
	return len(i.Containers)+len(i.Networks)+len(i.Volumes) == 0
}

// LogOptions selects a part of the output that the engine keeps for a container.
type LogOptions struct {
	// Tail is the number of lines from the end; 0 means all that the engine keeps.
	Tail int
	// Follow continues until the container ends.
	Follow bool
}

// ContainerCommand is a command to run in a running container.
type ContainerCommand struct {
	Args []string
	// Dir and User are the container's own if they are empty.
	Dir, User string
	// Env has NAME=VALUE entries, which win over the container's.
	Env []string
	// TTY runs the command on a terminal of the size Size.
	TTY  bool
	Size TerminalSize
}

// TerminalSize is the size of a terminal in characters. The zero value is unknown.
type TerminalSize struct{ Rows, Columns uint }

// ContainerStreams are the streams of a ContainerCommand.
type ContainerStreams struct {
	// Stdin is read until its end, which the command sees. It is closed when the command has
	// ended. nil means no input.
	Stdin io.ReadCloser
	// Stdout has all output of a terminal.
	Stdout, Stderr io.Writer
	// Sizes has the new sizes of the terminal. nil means that it keeps its size.
	Sizes <-chan TerminalSize
}

// Event is a hint that something in the engine changed. Observe the object before
// acting on it.
type Event struct {
	Identity
	// Action is the engine's name of the change, for example "die", "start",
	// "destroy" or "oom".
	Action string
	// ObjectID is the id of the container or network.
	ObjectID string
	Time     time.Time
}

// Description says what a container was created from, as far as its engine
// still knows. If the database is lost, the daemon rebuilds records from it.
type Description struct {
	// ContainerSpec leaves out the environment and the healthcheck that come from
	// the image. It has neither Limits nor Security.
	ContainerSpec
	// Image is what the container was created from.
	Image Image
	// ImageName is a reference to the image, or its id if it no longer has a name.
	ImageName string
}
