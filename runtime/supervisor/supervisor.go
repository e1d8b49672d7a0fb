// Package supervisor implements agbox-init, PID 1 of a primary container. It starts
// execs, reaps every process, writes output to log files, records how each exec ended,
// and answers the daemon over one Unix socket.
//
// A sandbox cannot survive the death of this process. So the package keeps little in
// memory, bounds everything that others can make grow, and makes all threads at its
// start.
package supervisor

import (
	"context"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

// Config configures a supervisor.
type Config struct {
	// Boot is the configuration that the daemon wrote for the container.
	Boot *guestv1.BootConfig
	// LinkDir is the folder for the socket.
	LinkDir string
	// LogDir is the existing folder of log and status files.
	LogDir string
	// RunDir is the folder for the agent socket and the link to the helper of agents. Helper
	// is the program that the link leads to.
	RunDir, Helper string
	// Env is the environment of the container. Every exec inherits it.
	Env []string
	// Passwd and Group are the container's user and group files.
	Passwd, Group string
	// Hostname and Hosts are its files with its name, which the engine mounts. Empty if it has none.
	Hostname, Hosts string
	// Version is reported to the daemon.
	Version string
	// Grace is the time between SIGTERM and SIGKILL when the supervisor stops. It must be
	// shorter than the engine's stop timeout.
	Grace time.Duration
}

// DefaultGrace leaves two of the engine's usual ten seconds for the last bytes and status
// files.
const DefaultGrace = 8 * time.Second

// Supervisor runs the execs of one container.
type Supervisor struct {
	cfg     Config
	logs    *logs.Dir
	bootID  string
	started time.Time
	// mainID is the exec id of the container's own command in this life of the container.
	// It is nil until the command is started. Without Boot.HoldCommand it is set before
	// the first call can arrive.
	mainID   atomic.Pointer[string]
	mainOnce sync.Once
	devNull  *os.File
	oom      *oomJudge
	children *children
	registry *registry
	// disk bounds the threads that wait for the log directory.
	disk gate
	// files bounds the threads that access files of the container.
	files gate
	// output moves the output of all execs into their logs.
	output *output.Collector
	// look bounds the threads that read /proc for a kill. It is a separate gate, so a
	// hung file system never prevents a kill.
	look gate
	// callers bounds the threads that read /proc for a connection to the agent socket, so
	// that many connections delay no kill.
	callers gate
	// waiting counts the bytes of waiting WriteStdin calls.
	waiting atomic.Int64
	// typing lets the heap grow while large WriteStdin calls arrive.
	typing process.BulkFlow
	// quota bounds the total output of all execs.
	quota *logs.Quota
	// settings are those of commands that begin now.
	settings atomic.Pointer[settings]
	// agents takes the reports of incarnations.
	agents *agentsocket.Server
	// memory returns what a burst of work has left.
	memory *memoryKeeper
	// refill wakes keepSpares.
	refill chan struct{}
	// work counts the goroutines of all execs, keepSpares and memory.
	work sync.WaitGroup
	// stopping is closed when all execs are being ended.
	stopping chan struct{}
	// collecting ends when output that a process outside still holds open is abandoned.
	collecting context.Context
	abandon    context.CancelFunc
}

func (s *Supervisor) mainExecID() string {
	if id := s.mainID.Load(); id != nil {
		return *id
	}
	return ""
}

// owner is the owner of the files that the supervisor writes for the host.
func (s *Supervisor) owner() logs.Owner {
	return logs.Owner{
		UID: int(s.boot().GetOwnerUid()), GID: int(s.boot().GetOwnerGid()), GroupAccess: s.boot().GetGroupAccess(),
	}
}

// settings are what commands inherit.
type settings struct {
	boot *guestv1.BootConfig
	// own are the entries of Configure, and env the environment of the container with them.
	own, env []string
	// redactor finds the values of the container's secret variables; nil if it has none.
	redactor *logs.Redactor
}

func settingsOf(container []string, boot *guestv1.BootConfig, own []string) *settings {
	all := &settings{boot: boot, own: own, env: overridden(container, own)}
	all.redactor = logs.NewRedactor(all.secrets())
	return all
}

// overridden is an environment with entries in place of those with the same names.
func overridden(env, own []string) []string {
	names := make(map[string]bool, len(own))
	for _, entry := range own {
		name, _, _ := strings.Cut(entry, "=")
		names[name] = true
	}
	out := make([]string, 0, len(env)+len(own))
	for _, entry := range env {
		if name, _, _ := strings.Cut(entry, "="); !names[name] {
			out = append(out, entry)
		}
	}
	return append(out, own...)
}

func (a *settings) secrets() []string { return valuesOf(a.env, a.boot.GetSecretEnvs()) }

// valuesOf returns the values of variables.
func valuesOf(env, names []string) []string {
	var values []string
	for _, name := range names {
		values = append(values, variable(env, name))
	}
	return values
}

// variable returns the value of a variable.
func variable(env []string, key string) string {
	for _, entry := range env {
		if k, v, ok := strings.Cut(entry, "="); ok && k == key {
			return v
		}
	}
	return ""
}

func (s *Supervisor) boot() *guestv1.BootConfig { return s.settings.Load().boot }

// service answers the calls of the protocol.
type service struct{ s *Supervisor }

// decided returns the exec once it runs or has ended, or nil if it is unknown.
func (v *service) decided(ctx context.Context, id string) (*execution, error) {
	e, _ := v.s.registry.get(id)
	if e == nil {
		return nil, nil
	}
	select {
	case <-e.decided:
		return e, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
