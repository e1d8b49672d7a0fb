// Package daemon creates the parts of a daemon and owns their lifetimes.
//
// The order matters: the lock of the install is taken first and released last, the store
// is opened before its readers, and the socket is opened once all parts can answer.
// Stopping does not change any sandbox.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"buf.build/go/protovalidate"
	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/doctor"
	"github.com/agbox/agbox/daemon/guests/execs"
	"github.com/agbox/agbox/daemon/guests/files"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/incarnations"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/daemon/review"
	"github.com/agbox/agbox/daemon/server"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/version"
	"github.com/agbox/agbox/logs/notify"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime/docker"
	"github.com/agbox/agbox/runtime/fence"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/store"
)

const (
	defaultResync      = 10 * time.Second
	defaultOrphanGrace = 10 * time.Minute
	// readyWithin is how long a supervisor may take to answer.
	readyWithin = 30 * time.Second
	// quiesceWithin bounds the wait for the engine before an upgrade. Stopping a
	// container takes up to 10 s.
	quiesceWithin = 20 * time.Second
	// stopWithin bounds the wait for running calls when the daemon stops.
	stopWithin = 5 * time.Second
)

// Run is the life of a daemon. It returns when ctx has ended or SIGTERM or SIGINT has
// arrived and everything is stopped, or when the daemon cannot start. In an upgrade the
// process becomes another program, and Run does not return.
func Run(ctx context.Context, cfg Config) error {
	stop := catchStop(ctx)
	defer func() { stop.release() }()
	if problem := paths.SocketProblem(cfg.Paths.Socket()); problem != "" {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "%s", problem)
	}
	if err := makeDirs(cfg.Paths); err != nil {
		return err
	}
	claim, err := takeClaim(stop.ctx, cfg.Paths, cfg.Log)
	if err != nil {
		return notStarted(stop.ctx, cfg.Log, err)
	}
	defer claim.release()
	// For the whole life: a SIGHUP between two generations must not end the process.
	hangup := make(chan os.Signal, 1)
	defer signal.Stop(hangup)
	for failure := ""; ; {
		signal.Notify(hangup, syscall.SIGHUP)
		next, err := generation(stop.ctx, cfg, claim, hangup, failure)
		if next == nil {
			return err
		}
		if err != nil {
			cfg.Log.Error("the daemon did not end in order before its upgrade", "error", err)
		}
		cfg.Log.Info("this agboxd has made room", "binary", next.binary)
		// The new program would not know about a signal that was caught here.
		if stop.release() || ctx.Err() != nil {
			cfg.Log.Info("agboxd was told to stop and does not become the new one")
			return err
		}
		err = claim.become(next, cfg.Arguments)
		stop = catchStop(ctx)
		cfg.Log.Error("the new agboxd could not be executed; this one goes on", "error", err)
		claim.handedOver = true
		failure = err.Error()
	}
}

// generation opens everything, serves until ctx ends or an upgrade was accepted, and
// closes everything except the claim. next is the binary to become, or nil if the daemon
// must end. failure says why the last upgrade failed.
func generation(ctx context.Context, cfg Config, claim *claim, hangup <-chan os.Signal, failure string) (next *successor, err error) {
	started := time.Now()
	db, err := store.Open(ctx, store.Options{
		Path: cfg.Paths.Database(), Sentinel: cfg.Paths.Sentinel(),
		Logger: cfg.Log, CheckCommand: cfg.CheckDatabase,
	})
	if err != nil {
		return nil, notStarted(ctx, cfg.Log, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	rooms, err := build(ctx, cfg, db, origin{
		started: started, supervisor: claim.supervisor, handedOver: claim.handedOver, upgradeError: failure,
	})
	if err != nil {
		return nil, notStarted(ctx, cfg.Log, err)
	}
	defer rooms.close()

	lis, err := claim.listen(ctx, cfg.Log)
	if err != nil {
		return nil, notStarted(ctx, cfg.Log, err)
	}
	cfg.Log.Info("agboxd is ready", "version", version.Version, "pid", os.Getpid(),
		"socket", cfg.Paths.Socket(), "data", cfg.Paths.Data, "install_id", db.InstallID())
	if err := tellSystemd(); err != nil {
		cfg.Log.Warn("systemd could not be told that agboxd is ready", "error", err)
	}
	return rooms.run(ctx, lis, claim, hangup)
}

// notStarted returns the error of a failed start, or nil if the daemon was told to stop.
func notStarted(ctx context.Context, log *slog.Logger, err error) error {
	if ctx.Err() == nil {
		return err
	}
	log.Info("agboxd was told to stop before it was ready", "error", err)
	return nil
}

func withDefaults(r machine.Retention) machine.Retention {
	const day = 24 * time.Hour
	return machine.Retention{
		KeepDeleted: cmp.Or(r.KeepDeleted, day), KeepExecs: cmp.Or(r.KeepExecs, day), KeepAgents: cmp.Or(r.KeepAgents, day),
		MaxAgents: cmp.Or(r.MaxAgents, 1000), MaxExecs: cmp.Or(r.MaxExecs, 1000), MaxEvents: cmp.Or(r.MaxEvents, 10000),
	}
}

// rooms are the parts of a running daemon.
type rooms struct {
	engine   *docker.Engine
	notifier *notify.Notifier
	links    *links.Links
	loop     *reconcile.Loop
	room     *retention.Room
	keeper   *retention.Keeper
	server   *server.Server
	upgrader *upgrader
	log      *slog.Logger
}

// origin says how a daemon was started.
type origin struct {
	started time.Time
	// supervisor is what is already known about the supervisor's binary.
	supervisor supervisorFile
	// handedOver: the previous daemon was upgraded to this one.
	handedOver bool
	// upgradeError is the error if the previous upgrade failed. It is usually empty.
	upgradeError string
}

func build(ctx context.Context, cfg Config, db *store.Store, from origin) (*rooms, error) {
	supervisor, err := installSupervisor(cfg.Paths, from.supervisor)
	if err != nil {
		return nil, err
	}
	engine, err := docker.New(docker.Options{Host: cfg.EngineHost, SubnetRanges: cfg.SubnetRanges})
	if err != nil {
		return nil, err
	}
	notifier := notify.New()
	r := &rooms{engine: engine, notifier: notifier, log: cfg.Log, upgrader: newUpgrader(cfg, db.Meta().GetSchemaVersion())}
	book, err := ledger.Open(ctx, db, time.Now, cfg.Log)
	if err != nil {
		r.close()
		return nil, err
	}
	book.RenewPools(ctx, fmt.Sprintf("%s, sandbox-memory %v, max-sandbox-log %d", version.Version, cfg.SandboxMemory, cfg.MaxSandboxLog), cfg.AutoPool, spec.Ahead)
	r.links = links.New(context.WithoutCancel(ctx), links.Options{
		Ledger: book, Paths: cfg.Paths, Now: time.Now, Log: cfg.Log,
		FirstPID: func(ctx context.Context, id string) (int, error) { return r.loop.FirstPID(ctx, id) },
		Lost:     func(id string) { r.loop.Enqueue(id) },
	})
	runner := execs.New(r.links, book, cfg.Paths, time.Now, cfg.Log)
	guestFiles := files.New(r.links, cfg.Paths)
	runs := incarnations.New(runner, guestFiles, book, cfg.Paths, func(id string) { r.loop.EnqueueAgent(id) }, time.Now, cfg.Log)
	r.links.SendNews(runs)
	if err := runs.RemoveStrays(ctx); err != nil {
		cfg.Log.Warn("copies of checkpoints for agents that were never accepted cannot be removed; the next start retries", "error", err)
	}
	host := hostfiles.New(cfg.Paths, engine.Address(), cfg.Policy)
	r.room = retention.NewRoom(retention.RoomOptions{
		Ledger: book, Paths: cfg.Paths, Now: time.Now, Log: cfg.Log,
		Stopped: func(id string) { r.loop.Interrupt(id) },
	})
	r.loop = reconcile.New(reconcile.Options{
		Engine: engine, Links: r.links, Execs: runner, Files: guestFiles, Agents: runs, Review: review.New(guestFiles, cfg.Paths), Room: r.room, Ledger: book, Paths: cfg.Paths,
		Host:      host,
		InstallID: db.InstallID(), Identities: db, EngineAddress: engine.Address(),
		EngineIdentified: func() {
			if err := storeEngine(cfg.Paths, engine.Address()); err != nil {
				cfg.Log.Warn("the address of the engine cannot be stored", "error", err)
			}
		},
		Supervisor: supervisor.Copy, Unprivileged: os.Geteuid() != 0,
		InstallSupervisor: func() (string, error) {
			now, err := installSupervisor(cfg.Paths, supervisor)
			return now.Copy, err
		},
		Resync: cmp.Or(cfg.Resync, defaultResync), Revival: cfg.Revival, ReadyWithin: readyWithin, HandedOver: from.handedOver,
		PendingRecovery: cfg.PendingRecovery, OrphanGrace: cmp.Or(cfg.OrphanGrace, defaultOrphanGrace),
		MaxExecLog: cfg.MaxExecLog, MaxSandboxLog: cfg.MaxSandboxLog, MaxFolderFiles: uint64(cfg.MaxSandboxFiles), MemoryDefault: cfg.SandboxMemory,
		Fence: fence.New(db.InstallID(), engine.Resolvers), FenceMode: cfg.HostFence, Now: time.Now, Log: cfg.Log,
	})
	book.NotifyAgents(r.loop.EnqueueAgent)
	r.keeper = retention.New(retention.Options{
		Ledger: book, Logs: retention.Files{Paths: cfg.Paths}, Rules: withDefaults(cfg.Retention), Now: time.Now, Log: cfg.Log,
	})
	rules, err := protovalidate.New()
	if err != nil {
		r.close()
		return nil, err
	}
	admits := admission.New(admission.Options{
		Engine: engine, Sandboxes: book, Probe: r.loop.Probe, Host: host, Paths: cfg.Paths, Rules: rules, Lifetimes: cfg.Lifetimes, Log: cfg.Log,
		Local: engine.HasImage,
	})
	runs.AdmitChildren(admits.ChildIn)
	runs.SandboxesOfChildren(incarnations.ChildSandboxes{Admit: admits.Derived, Enqueue: r.loop.Enqueue})
	runs.LifetimeOfChildren(cmp.Or(cfg.ChildLifetime, agboxv1.AgentLifetime_AGENT_LIFETIME_HELD))
	r.server = server.New(server.Options{
		Rules:     rules,
		Admission: admits,
		Ledger:    book, Engine: engine, Loop: r.loop, Room: r.room, Execs: runner, Files: guestFiles, Agents: runs, Logs: notifier, Paths: cfg.Paths,
		Examiner: doctor.New(doctor.Options{
			Engine: engine, Loop: r.loop, Links: r.links, Greet: greet(cfg.Paths, r.links.Check), Polling: notifier.Polling, Ledger: book,
			Paths: cfg.Paths, InstallID: db.InstallID(), Address: engine.Address(), AddressFrom: cfg.EngineFrom, Log: cfg.Log,
		}),
		About: server.About{
			InstallID: db.InstallID(), StartedAt: from.started, DataDir: cfg.Paths.Data, UpgradeError: from.upgradeError,
			Policy: host.Bound().Show(),
		},
		AutoPool: cfg.AutoPool, Pools: cfg.Pools, Upgrade: r.upgrader.upgrade, Log: cfg.Log,
	})
	return r, nil
}

// run serves until ctx ends or the upgrader has chosen a binary, which run returns. It
// first stops new calls, then new steps, then links. Running commits are completed. Work
// that does not end is abandoned; it finds the parts closed.
func (r *rooms) run(ctx context.Context, lis *server.Listener, claim *claim, hangup <-chan os.Signal) (next *successor, err error) {
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var work sync.WaitGroup
	work.Go(func() { r.loop.Run(inner) })
	work.Go(func() { r.keeper.Run(inner) })
	work.Go(func() { r.room.Run(inner) })
	work.Go(func() { r.server.KeepPools(inner) })
	work.Go(func() { memoryKeeper{heapAllocated, returnHeap}.run(inner) })
	work.Go(func() { r.upgrader.onHangup(inner, hangup) })

	served := make(chan error, 1)
	go func() { served <- r.server.Serve(lis) }() // ends with Stop below
	select {
	case <-ctx.Done():
		r.log.Info("agboxd stops; sandboxes and commands run on")
	case next = <-r.upgrader.chosen:
	case err = <-served:
		err = fmt.Errorf("serve the socket: %w", err)
	}
	if next == nil {
		claim.leaveSocket()
	} else {
		r.quiesce(ctx) // calls are still answered meanwhile
		r.server.Pause(lis)
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	r.links.StopWaiting()
	calls := r.server.Stop(stopCtx)
	inTime := within(leaveAfter, calls)
	stop()
	steps := waited(&work)
	if inTime = within(leaveAfter, steps) && inTime; !inTime {
		r.log.Error("something that agboxd is at does not end and is left behind", "stacks", stacks())
		claim.left = append(claim.left, calls, steps)
	}
	return next, err
}

// quiesce waits until the engine has completed its calls, so that the next daemon sees
// the results.
func (r *rooms) quiesce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quiesceWithin)
	defer cancel()
	if err := r.loop.Quiesce(ctx); err != nil {
		r.log.Warn("the engine has not ended what it is at; the next agboxd looks at it", "error", err)
	}
}

func (r *rooms) close() {
	if r.links != nil {
		r.links.Close()
	}
	if err := errors.Join(r.notifier.Close(), r.engine.Close()); err != nil {
		r.log.Warn("closing", "error", err)
	}
}

// Doctor examines an install whose daemon does not run. With fix set it adopts the
// sandboxes of a lost database. If there is no install, it makes nothing.
func Doctor(ctx context.Context, cfg Config, fix bool) (out *agboxv1.DoctorResponse, err error) {
	if _, err := os.Stat(cfg.Paths.Data); !errors.Is(err, fs.ErrNotExist) {
		// Another client may be starting a daemon, which ends for the reason that is looked for here.
		lock, err := lockInstall(ctx, cfg.Paths, cfg.Log, func() bool { return silent(cfg.Paths) })
		if err != nil {
			return nil, err
		}
		defer lock.Close()
	}
	engine, err := docker.New(docker.Options{Host: cfg.EngineHost})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	return doctor.Offline{
		Engine: engine, Paths: cfg.Paths, CheckDatabase: cfg.CheckDatabase, Now: time.Now, Log: cfg.Log,
		Execs: func(ctx context.Context, sandboxID string, running bool) (ledger.AdoptedExecs, error) {
			return execs.AdoptAll(ctx, cfg.Paths, sandboxID, running, time.Now())
		},
		Agents: func() []ledger.AdoptedAgent { return incarnations.AdoptAll(cfg.Paths, cfg.Log) },
	}.Examine(ctx, fix)
}

// greet makes the function that tries one supervisor and hangs up again. check is as
// links.Links.Check.
func greet(install paths.Install, check func(sandboxID string) guest.Check) func(context.Context, string) error {
	return func(ctx context.Context, sandboxID string) error {
		conn, err := guest.Dial(ctx, install.GuestLink(sandboxID), check(sandboxID))
		if err != nil {
			return err
		}
		conn.Close()
		return nil
	}
}
