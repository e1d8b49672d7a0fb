// Command agboxd owns the sandboxes of one install. The CLI, agbox, starts it when
// needed; "agboxd run" runs it in the foreground.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

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

// checkDatabase is a hidden command: the daemon checks its database in another
// process, because reading a truncated memory mapping kills the reader.
const checkDatabase = "check-database"

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

func checkCommand(path string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.Command(self, checkDatabase, path)
}
