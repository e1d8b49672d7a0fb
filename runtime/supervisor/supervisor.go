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
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
	"github.com/agbox/agbox/runtime/supervisor/files"
	"github.com/agbox/agbox/runtime/supervisor/output"
	"github.com/agbox/agbox/runtime/supervisor/rpc"
)

// Config configures a supervisor.
type Config struct {
	// Boot is the configuration that the daemon wrote when it made the container.
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
	// redactor finds the values of the container's secret variables; nil if it has none.
	redactor *logs.Redactor
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

// LoadBoot reads the boot configuration, a serialized guest.v1.BootConfig.
func LoadBoot(path string) (*guestv1.BootConfig, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the boot configuration cannot be read: %w", err)
	}
	boot := new(guestv1.BootConfig)
	if err := boot.UnmarshalVT(raw); err != nil {
		return nil, fmt.Errorf("the boot configuration %s is damaged: %w", path, err)
	}
	return boot, nil
}

// New prepares a supervisor. It starts nothing.
func New(cfg Config) (*Supervisor, error) {
	// Descriptors that the engine left open must not reach the execs.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	dir, err := logs.OpenDir(cfg.LogDir)
	if err != nil {
		return nil, fmt.Errorf("the log directory cannot be opened: %w", err)
	}
	devNull, err := openNull()
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	s := &Supervisor{
		cfg:      cfg,
		logs:     dir,
		bootID:   hex.EncodeToString(id[:]),
		started:  time.Now(),
		devNull:  devNull,
		oom:      newOOMJudge(),
		children: newChildren(),
		registry: newRegistry(),
		quota:    dir.NewQuota(cfg.Boot.GetMaxSandboxLogBytes()),
		redactor: logs.NewRedactor(valuesOf(cfg.Env, cfg.Boot.GetSecretEnvs())),
		disk:     make(gate, diskThreads),
		files:    make(gate, fileThreads),
		look:     make(gate, lookThreads),
		callers:  make(gate, callerThreads),
		memory:   newMemoryKeeper(),
		refill:   make(chan struct{}, 1),
		stopping: make(chan struct{}),
	}
	s.output = output.New(s.disk.do)
	s.agents = agentsocket.New(agentsocket.Config{
		Dir: cfg.RunDir, Helper: cfg.Helper, Logs: dir, Owner: s.owner(), Quota: s.quota, Disk: s.storeReport, Look: s.activityOf,
		KillCall: s.killCall, As: s.as, Caller: s.callerOf,
	})
	dir.KeepSpares(spareFiles, s.owner())
	return s, nil
}

// storeReport runs fn, which stores a report of an agent, when the disk has room.
func (s *Supervisor) storeReport(fn func()) {
	s.disk.do(fn)
	s.memory.work()
}

// openNull opens the standard input of all execs once, so an exec that removes /dev/null
// does not break the others. An image may lack /dev/null; the read end of a pipe without
// a writer also reads as end of file.
func openNull() (*os.File, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		return null, nil
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	_ = unix.Close(p[1])
	return os.NewFile(uintptr(p[0]), "null"), nil
}

// Run serves until SIGTERM, which PID 1 takes only from outside its container. Then it ends all processes and returns when their output and
// status are in the files. The process must have no other children, because Run reaps
// all. ready is called when the socket accepts connections.
func (s *Supervisor) Run(ctx context.Context, ready func()) error {
	s.collecting, s.abandon = context.WithCancel(context.WithoutCancel(ctx))
	defer s.abandon()
	caught, err := catchSignals()
	if err != nil {
		return err
	}
	defer caught.stop()

	ln, err := listen(filepath.Join(s.cfg.LinkDir, paths.LinkSocket), s.owner())
	if err != nil {
		return err
	}
	transferring, endTransfers := context.WithCancel(context.WithoutCancel(ctx))
	defer endTransfers()
	service := files.New(transferring, s.fileUser)
	ln.transfer = service.Serve

	s.output.Start()
	defer s.output.Stop()

	var loops sync.WaitGroup
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	loops.Go(func() { s.children.run(reaping, caught.chld) })
	// The main command must be known before the first caller asks for it.
	if !s.cfg.Boot.GetHoldCommand() {
		_, _ = s.release(ctx) // nothing can stop it yet
	}
	serving, stopServing := context.WithCancel(ctx)
	served := make(chan error, 1)
	loops.Go(func() { served <- ln.serve(serving, s.methods(service)); ln.wait(farewell) })

	s.work.Go(s.keepSpares)
	s.work.Go(func() { s.memory.run(s.stopping) })

	if ready != nil {
		ready()
	}

	select {
	case <-caught.term:
	case <-ctx.Done():
	case err = <-served:
		err = fmt.Errorf("the supervisor's socket failed: %w", err)
	}
	endTransfers()
	s.stopAll()
	s.agents.Close()
	s.registry.dismissWatchers()
	ln.finishTransfers(clearing)
	ln.finish(farewell)
	stopServing()
	stopReaping()
	loops.Wait()
	return err
}

// farewell is how long connections may take to send the last exits. The daemon reads
// those that it did not get from the status files.
const farewell = time.Second

// clearing is how long cancelled transfers may take, after all processes have ended, to
// remove incomplete files.
const clearing = 5 * time.Second

// mainExec is the exec id of the container's own command if the daemon does not set
// another one.
const mainExec = "main"

// release starts the container's own command, once, and returns its exec id. The id is
// empty if there is no command. Every returned id gets a status. So after the stop has
// begun, release returns an empty id for a command that was held back until then.
func (s *Supervisor) release(ctx context.Context) (id string, err error) {
	if len(s.cfg.Boot.GetCommand()) == 0 {
		return "", nil
	}
	s.mainOnce.Do(func() { s.startMain(ctx) })
	if id = s.mainExecID(); id == "" {
		return "", rpc.Errorf(rpc.Unavailable, "the supervisor is stopping and starts nothing any more")
	}
	return id, nil
}

func (s *Supervisor) mainExecID() string {
	if id := s.mainID.Load(); id != nil {
		return *id
	}
	return ""
}

// startMain claims the id of the container's own command and starts it in the background,
// like any other exec, counted in work.
func (s *Supervisor) startMain(ctx context.Context) {
	e := s.claimMain()
	if e == nil {
		return
	}
	s.mainID.Store(&e.id)
	// A failure becomes a record that the daemon asks for.
	go s.begin(context.WithoutCancel(ctx), e, &guestv1.StartRequest{
		ExecId:  e.id,
		Command: s.cfg.Boot.GetCommand(),
		User:    s.cfg.Boot.GetUser(),
		Cwd:     s.cfg.Boot.GetCwd(),
	})
}

// claimMain claims an exec id for the container's own command. It returns nil once the
// supervisor stops. An exec id is never reused: when the container is started again, its
// command runs as ID-2, ID-3 and so on, and the earlier logs stay. The daemon says which
// ids it has recorded, because status files of earlier runs may have been removed.
func (s *Supervisor) claimMain() *execution {
	first := s.cfg.Boot.GetMainExecId()
	if !ids.Valid(first) {
		first = mainExec
	}
	for run := max(1, s.cfg.Boot.GetMainRun()); ; run++ {
		id := ids.MainRun(first, run)
		if s.readStatus(id) == nil {
			if e, mine := s.registry.claim(id, &s.work); mine || e == nil {
				return e
			}
		}
	}
}
