package main

import (
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon"
	"github.com/agbox/agbox/internal/paths"
)

const (
	gib = 1 << 30

	// defaultExecLog is far more than anybody reads, and than builds write; yet a
	// command that writes without end does not fill a disk by itself.
	defaultExecLog = 1 * gib
	// defaultSandboxLog bounds what a sandbox can take of the host's disk, which the
	// database is on too, however many commands it runs.
	defaultSandboxLog = 10 * gib
)

// settings are what an operator can set: as flags, or under the same names in the
// configuration file. Flags win.
type settings struct {
	cfg   daemon.Config
	level slog.Level
	cmd   *cobra.Command
	// names are those of the settings, in the order of their flags.
	names []string
	// from tells of a setting whether it is in the file.
	from map[string]bool
}

// addSettings gives a command the flags of all settings.
func addSettings(cmd *cobra.Command) *settings {
	s := &settings{cmd: cmd, from: make(map[string]bool)}
	c := &s.cfg
	c.Revival = agboxv1.RevivalPolicy_REVIVAL_POLICY_FAIL
	c.Resync, c.OrphanGrace = 10*time.Second, 10*time.Minute
	c.Retention.KeepDeleted, c.Retention.KeepExecs = 24*time.Hour, 24*time.Hour
	c.Retention.MaxExecs, c.Retention.MaxEvents = 1000, 10000
	c.MaxExecLog, c.MaxSandboxLog = defaultExecLog, defaultSandboxLog

	f := cmd.Flags()
	s.addEngine()
	f.Var(rangesValue{&c.SubnetRanges, new(bool)}, "subnets", "ranges from which the networks of sandboxes are taken, for example 10.222.0.0/16")
	f.Var(policyValue{&c.Revival}, "revival", "what to do when the container of a sandbox ends by itself, where the sandbox does not say: fail, revive or reap")
	f.Var(recoveryValue{&c.PendingRecovery}, "pending-recovery", "what to do after a crash or a stop of the daemon with a sandbox that has no container yet: resume making it, or fail it")
	f.Var(timeValue{&c.Resync, time.Millisecond}, "resync", "pause between two full looks at the engine")
	f.Var(timeValue{&c.Retention.KeepDeleted, time.Second}, "keep-deleted", "how long the history and the logs of a deleted sandbox are kept")
	f.Var(timeValue{&c.Retention.KeepExecs, time.Second}, "keep-execs", "how long a finished command of a living sandbox and its logs are kept")
	f.Var(countValue{&c.Retention.MaxExecs}, "max-execs", "how many finished commands of a sandbox are kept; the oldest go first")
	f.Var(countValue{&c.Retention.MaxEvents}, "max-events", "how many events of a sandbox are kept; those of the oldest commands go first")
	f.Var(timeValue{&c.OrphanGrace, time.Second}, "orphan-grace", "how long a container or network of this install that belongs to no sandbox is left alone before it is removed")
	f.Var(sizeValue{&c.MaxExecLog}, "max-exec-log", "how many bytes of each output of a command are kept, where the command does not say; what goes beyond is counted. 0: no limit. Holds for new sandboxes")
	f.Var(sizeValue{&c.MaxSandboxLog}, "max-sandbox-log", "how many bytes of output of all commands of a sandbox are kept. 0: no limit. Holds for new sandboxes")
	f.TextVar(&s.level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	s.names = append(s.names, "subnets", "revival", "pending-recovery", "resync", "keep-deleted", "keep-execs", "max-execs", "max-events",
		"orphan-grace", "max-exec-log", "max-sandbox-log", "log-level")
	return s
}

// addEngine adds the setting that doctor has too.
func (s *settings) addEngine() {
	s.cmd.Flags().StringVar(&s.cfg.EngineHost, "engine", "", "address of the container engine (default: DOCKER_HOST, else the engine's own default)")
	s.names = append(s.names, "engine")
}

// load completes the settings from the configuration file, and with what a daemon
// needs of its process.
func (s *settings) load() (daemon.Config, error) {
	install, err := paths.FromEnv()
	if err != nil {
		return daemon.Config{}, err
	}
	if err := s.readFile(install.ConfigFile()); err != nil {
		return daemon.Config{}, err
	}
	cfg := s.cfg
	cfg.Paths = install
	cfg.CheckDatabase = checkCommand
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: s.level}))
	return cfg, nil
}
