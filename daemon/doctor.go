package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/doctor"
	"github.com/agbox/agbox/daemon/guests/execs"
	"github.com/agbox/agbox/daemon/incarnations"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime/docker"
	"github.com/agbox/agbox/runtime/guest"
)

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
		return conn.Close()
	}
}
