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

	"github.com/spf13/cobra"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon"
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
	// A terminal that goes away must not take the daemon along.
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
the next daemon takes them over.

Exit codes: 0 stopped as asked, 1 failed, 2 wrong usage, 4 another daemon runs.`,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(usage))
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

func runCommand(usage *bool) *cobra.Command {
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
			*usage = false
			install, err := paths.FromEnv()
			if err != nil {
				return err
			}
			cfg.Paths = install
			cfg.CheckDatabase = checkCommand
			cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
			return daemon.Run(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.EngineHost, "engine", "", "address of the container engine (default: DOCKER_HOST, else the engine's own default)")
	flags.StringSliceVar(&subnets, "subnets", nil, "ranges from which the networks of sandboxes are taken, for example 10.222.0.0/16")
	flags.StringVar(&revival, "revival", "fail", "what to do when the container of a sandbox ends by itself, where the sandbox does not say: fail, revive or reap")
	flags.DurationVar(&cfg.Resync, "resync", 0, "pause between two full looks at the engine (default 10s)")
	flags.TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	return cmd
}

func checkCommand(path string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.Command(self, checkDatabase, path)
}
