// Command agboxd owns the sandboxes of one install. The CLI, agbox, starts it
// when it is needed; "agboxd run" runs it in the foreground.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/version"
	"github.com/agbox/agbox/store"
)

// Exit codes, as "agboxd --help" shows them.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitRuns   = 4
)

// checkDatabase is the hidden command by which the daemon checks its database
// in a process of its own: reading a truncated mapping kills the reader.
const checkDatabase = "check-database"

func main() { os.Exit(run()) }

func run() int {
	if len(os.Args) == 3 && os.Args[1] == checkDatabase {
		return store.CheckMain(os.Args[2])
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// Until the daemon listens to it: an upgrade that comes early must not end it.
	signal.Ignore(syscall.SIGHUP)

	usage := true
	root := command(&usage)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(os.Stderr, "agboxd:", err)
	switch {
	case usage:
		return exitUsage
	case errors.Is(err, daemon.ErrRuns):
		return exitRuns
	}
	return exitFailed
}

// command builds the command line. usage is set to false once the arguments
// have been accepted.
func command(usage *bool) *cobra.Command {
	root := &cobra.Command{
		Use:   "agboxd",
		Short: "agboxd owns the sandboxes of agbox",
		Long: `agboxd owns the sandboxes of agbox. "agbox daemon start" runs it in the
background; "agboxd run" in the foreground.

It ends on SIGTERM and SIGINT. Sandboxes and the commands in them run on, and
the next daemon takes them over. On SIGHUP it becomes the agboxd that now stands
at the path it was started from, as with "agbox daemon upgrade".

Exit codes: 0 stopped as asked, 1 failed, 2 wrong usage, 4 another daemon runs.`,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(usage, daemon.Run), preflightCommand(usage))
	root.AddCommand(doctorCommand(usage))
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// runCommand reads the flags of a daemon and hands them to begin.
func runCommand(usage *bool, begin func(context.Context, daemon.Config) error) *cobra.Command {
	cfg := daemon.Config{}
	var subnets []string
	var revival string
	level := slog.LevelInfo
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon in the foreground; its log goes to standard error",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, subnet := range subnets {
				prefix, err := netip.ParsePrefix(subnet)
				if err != nil {
					return fmt.Errorf("--subnets %q is not a range such as 10.222.0.0/16", subnet)
				}
				cfg.SubnetRanges = append(cfg.SubnetRanges, prefix)
			}
			policy, known := agboxv1.RevivalPolicy_value["REVIVAL_POLICY_"+strings.ToUpper(revival)]
			if !known || policy == 0 {
				return fmt.Errorf("--revival %q is not fail, revive or reap", revival)
			}
			cfg.Revival = agboxv1.RevivalPolicy(policy)
			if err := checkRetention(cfg); err != nil {
				return err
			}
			*usage = false
			install, err := paths.FromEnv()
			if err != nil {
				return err
			}
			cfg.Paths = install
			cfg.CheckDatabase = checkCommand
			cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
			cfg.Arguments = os.Args[1:]
			return begin(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.EngineHost, "engine", "", "address of the container engine (default: DOCKER_HOST, else the engine's own default)")
	flags.StringSliceVar(&subnets, "subnets", nil, "ranges from which the networks of sandboxes are taken, for example 10.222.0.0/16")
	flags.StringVar(&revival, "revival", "fail", "what to do when the container of a sandbox ends by itself, where the sandbox does not say: fail, revive or reap")
	flags.DurationVar(&cfg.Resync, "resync", 0, "pause between two full looks at the engine (default 10s)")
	flags.DurationVar(&cfg.Retention.KeepDeleted, "keep-deleted", 24*time.Hour, "how long the history and the logs of a deleted sandbox are kept")
	flags.DurationVar(&cfg.Retention.KeepExecs, "keep-execs", 24*time.Hour, "how long a finished command of a living sandbox and its logs are kept")
	flags.IntVar(&cfg.Retention.MaxExecs, "max-execs", 1000, "how many finished commands of a sandbox are kept; the oldest go first")
	flags.IntVar(&cfg.Retention.MaxEvents, "max-events", 10000, "how many events of a sandbox are kept; those of the oldest commands go first")
	flags.DurationVar(&cfg.OrphanGrace, "orphan-grace", 10*time.Minute, "how long a container or network of this install that belongs to no sandbox is left alone before it is removed")
	flags.TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	return cmd
}

// checkRetention refuses what would remove things while they are in use, or what
// somebody might take for "never".
func checkRetention(cfg daemon.Config) error {
	for _, flag := range []struct {
		name  string
		value time.Duration
	}{
		{"keep-deleted", cfg.Retention.KeepDeleted}, {"keep-execs", cfg.Retention.KeepExecs}, {"orphan-grace", cfg.OrphanGrace},
	} {
		if flag.value < time.Second {
			return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"The time %s of --%s is too short: give at least 1s.", flag.value, flag.name)
		}
	}
	if cfg.Retention.MaxExecs < 1 || cfg.Retention.MaxEvents < 1 {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"The numbers of --max-execs and --max-events must be at least 1.")
	}
	return nil
}

func checkCommand(path string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.Command(self, checkDatabase, path)
}
