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
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
	"github.com/agbox/agbox/runtime/supervisor/files"
	"github.com/agbox/agbox/runtime/supervisor/output"
)

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
		disk:     make(gate, diskThreads),
		files:    make(gate, fileThreads),
		look:     make(gate, lookThreads),
		callers:  make(gate, callerThreads),
		memory:   newMemoryKeeper(),
		refill:   make(chan struct{}, 1),
		stopping: make(chan struct{}),
	}
	s.settings.Store(settingsOf(cfg.Env, cfg.Boot, nil))
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
	if !s.boot().GetHoldCommand() {
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
