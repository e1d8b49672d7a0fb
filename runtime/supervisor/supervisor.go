// Package supervisor is what agbox-init does as PID 1 of a primary container:
// it starts execs, reaps every process, writes output to log files, journals
// what became of each exec, and answers the daemon over one Unix socket.
//
// It is the one process of a sandbox that must not die, so it keeps little in
// memory, bounds all that others can make grow, and needs no thread that it has
// not made at its start.
package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/bulk"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

// Config is what a supervisor is started with.
type Config struct {
	// Boot is what the daemon decided when it made the container.
	Boot *guestv1.BootConfig
	// LinkDir is the folder in which the socket is made.
	LinkDir string
	// LogDir is the existing folder of log and status files.
	LogDir string
	// Env is the environment of the container, under that of every exec.
	Env []string
	// Passwd and Group are the container's user and group files.
	Passwd, Group string
	// Version is told to the daemon.
	Version string
	// Grace is the time between SIGTERM and SIGKILL when the supervisor stops.
	// It must be shorter than the engine's stop timeout.
	Grace time.Duration
}

// DefaultGrace leaves two of the engine's usual ten seconds for the last bytes
// and status files.
const DefaultGrace = 8 * time.Second

// Supervisor runs the execs of one container.
type Supervisor struct {
	cfg     Config
	logs    *logs.Dir
	bootID  string
	started time.Time
	// mainID is the exec id of the container's own command in this life; nil while it
	// has not been started. Without Boot.HoldCommand it is set before anybody can ask.
	mainID   atomic.Pointer[string]
	mainOnce sync.Once
	devNull  *os.File
	oom      *oomJudge
	children *children
	registry *registry
	// disk bounds the threads that wait for the log directory.
	disk gate
	// files bounds the threads that look at files of the container.
	files gate
	// output moves the output of all execs into their logs.
	output *output.Collector
	// look bounds the threads that read /proc for a kill. They have a gate of their
	// own, so that a hung file system never keeps an exec from being killed.
	look gate
	// waiting counts the bytes of calls of WriteStdin.
	waiting atomic.Int64
	// typing gives the heap room while big calls of WriteStdin come.
	typing bulk.Flow
	// quota bounds the output of all execs together.
	quota *logs.Quota
	// refill tells keepSpares to look.
	refill chan struct{}
	// work counts the goroutines of all execs, and keepSpares.
	work sync.WaitGroup
	// stopping is closed when all execs are being ended.
	stopping chan struct{}
	// patience ends when output that somebody outside still holds open is given up.
	patience context.Context
	giveUp   context.CancelFunc
}

// LoadBoot reads the boot configuration, a serialized guest.v1.BootConfig.
func LoadBoot(path string) (*guestv1.BootConfig, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the boot configuration cannot be read: %w", err)
	}
	boot := new(guestv1.BootConfig)
	if err := proto.Unmarshal(raw, boot); err != nil {
		return nil, fmt.Errorf("the boot configuration %s is damaged: %w", path, err)
	}
	return boot, nil
}

// New prepares a supervisor. It starts nothing yet.
func New(cfg Config) (*Supervisor, error) {
	// What the engine may have left open must not reach the execs.
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
		disk:     make(gate, diskThreads),
		files:    make(gate, fileThreads),
		look:     make(gate, lookThreads),
		refill:   make(chan struct{}, 1),
		stopping: make(chan struct{}),
	}
	s.output = output.New(s.disk.do)
	dir.KeepSpares(spareFiles, s.owner())
	return s, nil
}

// openNull opens the standard input of all execs once, so that an exec cannot
// break the others by removing /dev/null. An image may come without it; the read
// end of a pipe nobody writes to gives the same end of file.
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

// Run serves until SIGTERM, then ends all processes and returns when their
// output and status are in the files. The process must have no other children:
// Run reaps them all. ready is called when the socket accepts connections.
func (s *Supervisor) Run(ctx context.Context, ready func()) error {
	s.patience, s.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	defer s.giveUp()
	term, chld := catchSignals()
	defer signal.Stop(term)
	defer signal.Stop(chld)

	ln, err := listen(filepath.Join(s.cfg.LinkDir, paths.LinkSocket), s.cfg.Boot.GetOwnerUid(), s.cfg.Boot.GetOwnerGid())
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(surviveCall))
	if err != nil {
		return err
	}
	guestv1.RegisterSupervisorService(server, &service{s})
	transferring, endTransfers := context.WithCancel(context.WithoutCancel(ctx))
	defer endTransfers()
	s.serveFiles(transferring, server, ln)

	s.output.Start()
	defer s.output.Stop()

	var loops sync.WaitGroup
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	loops.Go(func() { s.children.run(reaping, chld) })
	// Whoever asks for the main command must find it known, so it comes first.
	if !s.cfg.Boot.GetHoldCommand() {
		_, _ = s.release(ctx) // nothing stops it yet
	}
	serving, stopServing := context.WithCancel(ctx)
	served := make(chan error, 1)
	loops.Go(func() { served <- server.Serve(serving, ln) })

	s.work.Go(s.keepSpares)

	if ready != nil {
		ready()
	}

	select {
	case <-term:
	case <-ctx.Done():
	case err = <-served:
		err = fmt.Errorf("the supervisor's socket failed: %w", err)
	}
	endTransfers()
	s.stopAll()
	s.registry.dismissWatchers()
	ln.finishTransfers(clearing)
	ln.finish(farewell)
	stopServing()
	_ = server.Close() // its connections are closed already
	stopReaping()
	loops.Wait()
	return err
}

// farewell is how long connections may take to send the last exits. The daemon
// finds what it did not get in the status files.
const farewell = time.Second

// clearing is how long transfers that were broken off may still take, after all
// processes have ended, to remove what they had half done.
const clearing = 5 * time.Second

// mainExec is the exec id of the container's own command where the daemon does
// not say another one.
const mainExec = "main"

// release starts the container's own command, once, and returns its exec id; empty
// when there is none. An id that it returns comes to a status, so once the supervisor
// stops there is none for a command that was held back until then.
func (s *Supervisor) release(ctx context.Context) (id string, err error) {
	if len(s.cfg.Boot.GetCommand()) == 0 {
		return "", nil
	}
	s.mainOnce.Do(func() { s.startMain(ctx) })
	if id = s.mainExecID(); id == "" {
		return "", status.Error(codes.Unavailable, "the supervisor is stopping and starts nothing any more")
	}
	return id, nil
}

func (s *Supervisor) mainExecID() string {
	if id := s.mainID.Load(); id != nil {
		return *id
	}
	return ""
}

// startMain claims the id of the container's own command and starts it in the
// background, as an exec like any other, counted in work.
func (s *Supervisor) startMain(ctx context.Context) {
	e := s.claimMain()
	if e == nil {
		return
	}
	s.mainID.Store(&e.id)
	// A failure is a record that the daemon asks for.
	go s.begin(context.WithoutCancel(ctx), e, &guestv1.StartRequest{
		ExecId:  e.id,
		Command: s.cfg.Boot.GetCommand(),
		User:    s.cfg.Boot.GetUser(),
		Cwd:     s.cfg.Boot.GetCwd(),
	})
}

// claimMain claims an exec id for the container's own command; nil once the supervisor
// stops. An exec id is used once for ever, so when the container is started again its
// command runs as ID-2, ID-3 and so on, beside the logs of the lives before.
func (s *Supervisor) claimMain() *execution {
	first := s.cfg.Boot.GetMainExecId()
	if !ids.Valid(first) {
		first = mainExec
	}
	id := first
	for n := 2; ; n++ {
		if s.readStatus(id) == nil {
			if e, mine := s.registry.claim(id, &s.work); mine || e == nil {
				return e
			}
		}
		id = fmt.Sprintf("%s-%d", first, n)
	}
}
