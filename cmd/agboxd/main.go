// Command agboxd owns the sandboxes of one install. The CLI, agbox, starts it when
// needed; "agboxd run" runs it in the foreground.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/agbox/agbox/daemon"
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

// helpColumns keeps the help within 100 columns; pflag exceeds what it is given by up to 5.
const helpColumns = 94

func main() { os.Exit(run()) }

func run() int {
	if len(os.Args) == 3 && os.Args[1] == checkDatabase {
		return store.CheckMain(os.Args[2])
	}
	// Ignore SIGHUP until the daemon handles it: an early upgrade request must not kill it.
	signal.Ignore(syscall.SIGHUP)

	usage := true
	root := command(&usage)
	err := root.ExecuteContext(context.Background())
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

It stops on SIGTERM and SIGINT. Sandboxes and their commands keep running, and the
next daemon takes them over. On SIGHUP it replaces itself with the agboxd that is now
at the path it was started from, like "agbox daemon upgrade".

Exit codes: 0 stopped by a signal, 1 failed, 2 invalid usage or settings, 4 another
daemon is running.`,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		text := err.Error()
		return errors.New(strings.ToUpper(text[:1]) + text[1:] + ".")
	})
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages ", fmt.Sprintf("FlagUsagesWrapped %d ", helpColumns)))
	root.AddCommand(runCommand(usage, daemon.Run), preflightCommand(usage))
	root.AddCommand(configCommand(usage), doctorCommand(usage))
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// runCommand reads the settings of a daemon and passes them to begin.
func runCommand(usage *bool, begin func(context.Context, daemon.Config) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon in the foreground; its log goes to standard error",
		Long: `Run the daemon in the foreground; its log goes to standard error. A configuration
file can set the same settings; "agboxd config" shows its path and the result.

A daemon that agbox starts writes its log to agboxd.log in the data directory.
At 10 MiB it renames the file to agboxd.log.1, and keeps three such files.`,
		Args: cobra.NoArgs,
	}
	s := addSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := s.load()
		if err != nil {
			return err
		}
		*usage = false
		cfg.Arguments = os.Args[1:]
		return begin(cmd.Context(), cfg)
	}
	return cmd
}

// preflightCommand is what a running daemon runs to check the binary that is to replace
// it. It takes the flags of "run" too, so a setting that this binary refuses is found
// before the old daemon ends.
func preflightCommand(usage *bool) *cobra.Command {
	var asked daemon.Successor
	cmd := runCommand(usage, func(_ context.Context, cfg daemon.Config) error {
		return asked.Check(cfg.Paths, os.Stdout)
	})
	cmd.Use = "preflight"
	cmd.Short = "Check whether this binary can replace the running daemon; changes nothing"
	cmd.Hidden = true
	flags := cmd.Flags()
	flags.Uint32Var(&asked.Schema, "schema", 0, "version of the schema of the open database")
	flags.StringVar(&asked.Data, "data", "", "data directory of the running daemon")
	flags.StringVar(&asked.Socket, "socket", "", "socket of the running daemon")
	return cmd
}

// configCommand shows the settings that a daemon would run with.
func configCommand(usage *bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the settings that \"agboxd run\" would use with these flags",
		Long: `Show, as a configuration file, the settings that "agboxd run" would use with these
flags, and where each comes from. The configuration file is agboxd.yaml in the
configuration folder of the install; the first line shows its path. It can set
everything that the flags set, under the same names. Flags override the file.`,
		Args: cobra.NoArgs,
	}
	s := addSettings(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		cfg, err := s.load()
		if err != nil {
			return err
		}
		*usage = false
		return s.print(os.Stdout, cfg.Paths.ConfigFile())
	}
	return cmd
}

// doctorCommand is what "agbox doctor" runs if the daemon cannot start.
func doctorCommand(usage *bool) *cobra.Command {
	var fix bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show why the daemon cannot start; adopt the sandboxes of a lost database",
		Long: `Inspect an install whose daemon is not running, and write the findings to standard
output as JSON. "agbox doctor" runs this command when needed and formats the
findings.`,
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	s := &settings{cmd: cmd, from: make(map[string]bool), level: slog.LevelWarn}
	s.addEngine()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		*usage = false
		cfg, err := s.load()
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		out, err := daemon.Doctor(ctx, cfg, fix)
		if err != nil {
			return err
		}
		raw, err := protojson.Marshal(out)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(os.Stdout, "%s\n", raw)
		return err
	}
	cmd.Flags().BoolVar(&fix, "fix", false, "adopt the sandboxes of a lost database")
	return cmd
}
