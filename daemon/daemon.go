// Package daemon puts the rooms together and gives them their lifetimes.
//
// The order matters: the lock of the install comes first and goes last, the
// store opens before anything that reads it, and the socket opens when all can
// answer. On the way down no sandbox is touched.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/execs"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/daemon/server"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/version"
	"github.com/agbox/agbox/logs/notify"
	"github.com/agbox/agbox/runtime/docker"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/store"
)

// Config is what an operator can set.
type Config struct {
	Paths paths.Install
	// EngineHost is the engine's address, for example unix:///run/docker.sock;
	// empty: DOCKER_HOST, else the engine's default.
	EngineHost string
	// SubnetRanges are where the networks of sandboxes are taken from; empty:
	// the adapter's default.
	SubnetRanges []netip.Prefix
	// Revival is the policy of sandboxes whose spec names none; unspecified: fail.
	Revival agboxv1.RevivalPolicy
	// Resync is the pause between two full looks at the engine; 0: 10 s.
	Resync time.Duration
	// CheckDatabase makes the command that checks a database in a process of
	// its own after an unclean stop.
	CheckDatabase func(path string) *exec.Cmd
	Log           *slog.Logger
}

const (
	defaultResync = 10 * time.Second
	// readyWithin is how long a supervisor may take to answer.
	readyWithin = 30 * time.Second
	// stopWithin bounds the end of calls under way when the daemon stops.
	stopWithin = 5 * time.Second
)

// Run is the life of a daemon: it returns when ctx has ended and all is down,
// or when it cannot start.
func Run(ctx context.Context, cfg Config) (err error) {
	started := time.Now()
	if err := checkSocketPath(cfg.Paths); err != nil {
		return err
	}
	if err := makeDirs(cfg.Paths); err != nil {
		return err
	}
	lock, err := lockInstall(cfg.Paths)
	if err != nil {
		return err
	}
	defer lock.release()

	db, err := store.Open(ctx, store.Options{
		Path: cfg.Paths.Database(), Sentinel: cfg.Paths.Sentinel(),
		Logger: cfg.Log, CheckCommand: cfg.CheckDatabase,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	rooms, err := build(ctx, cfg, db, started)
	if err != nil {
		return err
	}
	defer rooms.close()

	lis, err := listen(cfg.Paths, cfg.Log)
	if err != nil {
		return err
	}
	cfg.Log.Info("agboxd is ready", "version", version.Version, "pid", os.Getpid(),
		"socket", cfg.Paths.Socket(), "data", cfg.Paths.Data, "install_id", db.InstallID())
	return rooms.run(ctx, lis)
}

// rooms are the parts of a running daemon.
type rooms struct {
	engine   *docker.Engine
	notifier *notify.Notifier
	execs    *execs.Runner
	loop     *reconcile.Loop
	server   *server.Server
	log      *slog.Logger
}

func build(ctx context.Context, cfg Config, db *store.Store, started time.Time) (*rooms, error) {
	supervisor, err := installSupervisor(cfg.Paths)
	if err != nil {
		return nil, err
	}
	engine, err := docker.New(docker.Options{Host: cfg.EngineHost, SubnetRanges: cfg.SubnetRanges})
	if err != nil {
		return nil, err
	}
	notifier, err := notify.New()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch log files: %w", err), engine.Close())
	}
	r := &rooms{engine: engine, notifier: notifier, log: cfg.Log}
	book, err := ledger.Open(ctx, db, time.Now, cfg.Log)
	if err != nil {
		r.close()
		return nil, err
	}
	r.execs = execs.New(context.WithoutCancel(ctx), book, cfg.Paths, time.Now, cfg.Log,
		func(id string) { r.loop.Enqueue(id) })
	resync := cfg.Resync
	if resync == 0 {
		resync = defaultResync
	}
	r.loop = reconcile.New(reconcile.Options{
		Engine: engine, Guests: r.execs, Ledger: book, Paths: cfg.Paths,
		InstallID: db.InstallID(), Supervisor: supervisor,
		Resync: resync, Revival: cfg.Revival, ReadyWithin: readyWithin, Now: time.Now, Log: cfg.Log,
	})
	r.server, err = server.New(server.Options{
		Ledger: book, Loop: r.loop, Execs: r.execs, Logs: notifier, Paths: cfg.Paths,
		InstallID: db.InstallID(), StartedAt: started, Log: cfg.Log,
	})
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func installSupervisor(install paths.Install) (string, error) {
	binary, err := guest.FindBinary()
	if err != nil {
		return "", err
	}
	return guest.InstallBinary(binary, install.Supervisors())
}

// run serves until ctx ends: first no new calls, then no new steps, then no
// links. Commits under way are finished in between.
func (r *rooms) run(ctx context.Context, lis *server.Listener) error {
	loopCtx, stopLoop := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoop()
	var loop sync.WaitGroup
	loop.Go(func() { r.loop.Run(loopCtx) })

	served := make(chan error, 1)
	go func() { served <- r.server.Serve(lis) }() // ends with Stop below
	var err error
	select {
	case <-ctx.Done():
		r.log.Info("agboxd stops; sandboxes and commands run on")
	case err = <-served:
		err = fmt.Errorf("serve the socket: %w", err)
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	r.server.Stop(stopCtx)
	stopLoop()
	loop.Wait()
	return err
}

func (r *rooms) close() {
	if r.execs != nil {
		r.execs.Close()
	}
	if err := errors.Join(r.notifier.Close(), r.engine.Close()); err != nil {
		r.log.Warn("closing", "error", err)
	}
}
