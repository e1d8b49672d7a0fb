package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	"github.com/agbox/agbox/internal/version"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// stopBound is how long the daemon may take to stop.
const stopBound = time.Minute

func (a *app) daemonCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "daemon COMMAND",
		Short: "Run, start, stop or upgrade the daemon, or show its status or log",
		Long: `The daemon owns the sandboxes. The first command that needs it starts it. Stopping
it affects no sandbox and no running command.`,
	}
	onlyCommands(cmd, a.daemonRunCommand(), a.daemonStartCommand(), a.daemonStopCommand(), a.daemonUpgradeCommand(), a.daemonStatusCommand(), a.daemonLogsCommand())
	return cmd
}

// withRunning is with for a daemon that is not started for this, and has so long to answer.
func (a *app) withRunning(bound time.Duration, do func(context.Context, *client.Client) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.noAutostart = true
		return a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			ctx, cancel := context.WithTimeout(ctx, bound)
			defer cancel()
			return do(ctx, c)
		})(cmd, args)
	}
}

func (a *app) daemonRunCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the daemon in the foreground",
		RunE: func(*cobra.Command, []string) error {
			a.began = true
			if err := a.ownSocketOnly(); err != nil {
				return err
			}
			binary, err := client.FindDaemon()
			if err != nil {
				return err
			}
			return a.replace(binary, []string{"agboxd", "run"}, os.Environ())
		},
	}
}

func (a *app) daemonStartCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "start",
		Short: "Start the daemon in the background",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.began = true
			if err := a.ownSocketOnly(); err != nil {
				return err
			}
			ctx, done := a.interruptible(cmd.Context())
			defer done()
			p, err := client.StartDaemon(ctx, client.DaemonConfig{})
			switch {
			case err != nil:
				return err
			case p.Started:
				_, err = fmt.Fprintf(a.stdout, "agboxd is running (pid %d). Log: %s\n", p.PID, p.Log)
			default:
				_, err = fmt.Fprintf(a.stdout, "agboxd is already running (pid %d).\n", p.PID)
			}
			return err
		},
	}
}

func (a *app) daemonStopCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Stop the daemon; sandboxes and commands keep running",
		RunE: a.withRunning(stopBound, func(ctx context.Context, c *client.Client) error {
			left, _ := untilRemoved(ctx, c)
			pid, err := c.StopDaemon(ctx)
			if errors.Is(err, client.ErrDaemonNotRunning) {
				a.say("agboxd is not running: no process listens on %s.", c.Socket())
				return nil
			}
			if err != nil {
				return err
			}
			if len(left) > 0 {
				a.say("Not removed yet: %s. The next daemon goes on with that.", strings.Join(left, ", "))
			}
			return a.printf("agboxd (pid %d) has stopped. Sandboxes and commands keep running.\n", pid)
		}),
	}
}

func (a *app) daemonStatusCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show whether the daemon runs, with its version, paths and engine",
		RunE: a.withRunning(glance, func(ctx context.Context, c *client.Client) error {
			p, err := c.Ping(ctx)
			switch {
			case err != nil:
				return err
			case out == formatJSON:
				return printStatusJSON(a, c.Socket(), p)
			}
			return printStatus(a, c.Socket(), p)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

// daemonStatus is the status of a daemon in the JSON output.
type daemonStatus struct {
	PID       uint32          `json:"pid"`
	Version   string          `json:"version"`
	Socket    string          `json:"socket"`
	DataDir   string          `json:"data_dir"`
	InstallID string          `json:"install_id"`
	StartedAt time.Time       `json:"started_at"`
	Engine    json.RawMessage `json:"engine"` // EngineStatus
}

func printStatusJSON(a *app, socket string, p *agboxv1.PingResponse) error {
	engine, err := view.JSON(p.GetEngine())
	if err != nil {
		return err
	}
	return printJSON(a.stdout, daemonStatus{
		p.GetPid(), p.GetVersion(), socket, p.GetDataDir(), p.GetInstallId(), p.GetStartedAt().AsTime(), engine,
	})
}

func printStatus(a *app, socket string, p *agboxv1.PingResponse) error {
	engine := fmt.Sprintf("Docker %s (API %s)", p.GetEngine().GetVersion(), p.GetEngine().GetApiVersion())
	if !p.GetEngine().GetReachable() {
		// No error means the daemon has just started and has not contacted the engine yet.
		engine = "not contacted yet"
		if why := p.GetEngine().GetError(); why != "" {
			engine = "not reachable: " + printable(why)
		}
	}
	_, err := fmt.Fprintf(a.stdout, "agboxd is running.\n  pid      %d\n  version  %s\n  started  %s\n  socket   %s\n  data     %s\n  install  %s\n  engine   %s\n",
		p.GetPid(), p.GetVersion(), a.since(p.GetStartedAt()), socket, p.GetDataDir(), p.GetInstallId(), engine)
	return err
}

// upgradeBound is how long an upgrade may take: the check of the new binary, the end of
// running work, the start.
const upgradeBound = time.Minute

func (a *app) daemonUpgradeCommand() *cobra.Command {
	var binary string
	cmd := &cobra.Command{
		Use:   "upgrade [flags]",
		Short: "Replace the running daemon with a newer agboxd, without interruption",
		Long: `Replace the running daemon with the agboxd that is now at the path it was started
from, or with the one that --binary names. The new binary is checked first; if the
check fails, nothing changes.

The process id stays the same, callers wait for some milliseconds, and streams
continue where they were. Sandboxes and commands are not affected. Sending SIGHUP to
the daemon does the same.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if binary != "" {
				abs, err := filepath.Abs(binary)
				if err != nil {
					return err
				}
				binary = abs
			}
			return a.withRunning(upgradeBound, func(ctx context.Context, c *client.Client) error {
				done, err := c.UpgradeDaemon(ctx, binary)
				if err != nil {
					return err
				}
				return a.printf("agboxd (pid %d) was upgraded from %s to %s.\n", done.PID, done.OldVersion, done.NewVersion)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&binary, "binary", "", "`PATH` of the new agboxd; its agbox-init must be in the same folder")
	return cmd
}

func (a *app) versionCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "version [flags]",
		Short: "Show the versions of agbox and of the running daemon",
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.began = true
			return printVersion(cmd.Context(), a, out)
		},
	}
	addFormat(cmd, &out)
	return cmd
}

// addVersionFlag adds -v and --version, which show the version of agbox alone.
func (a *app) addVersionFlag(root *cobra.Command) {
	var show bool
	root.Flags().BoolVarP(&show, "version", "v", false, "show the version of agbox")
	help := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if !show {
			return help(cmd, args)
		}
		return a.println("agbox", version.Version)
	}
}

// versions are the versions in the JSON output.
type versions struct {
	Client string `json:"client"`
	// Daemon is nil if none runs.
	Daemon *string `json:"daemon"`
}

func printVersion(ctx context.Context, a *app, out format) error {
	daemon := a.daemonVersion(ctx)
	if out == formatJSON {
		v := versions{Client: version.Version}
		if daemon != "" {
			v.Daemon = &daemon
		}
		return printJSON(a.stdout, v)
	}
	if daemon == "" {
		daemon = "not running"
	}
	return a.printf("agbox   %s\nagboxd  %s\n", version.Version, daemon)
}

// daemonVersion asks a running daemon for its version; empty if none answers.
func (a *app) daemonVersion(ctx context.Context) string {
	answer, _ := askRunning(ctx, a, func(ctx context.Context, c *client.Client) (string, error) {
		out, err := c.Ping(ctx)
		return out.GetVersion(), err
	})
	return answer
}

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy COMMAND",
		Short: "Show what the operator of this machine allows at most",
	}
	show := &cobra.Command{
		Use:   "show",
		Short: "Show the policy that the daemon applies, and where each setting comes from",
		Long: `Show the policy that the daemon applies, and where each setting comes from.

The operator writes it into /etc/agbox/policy.yaml, which only root may change. It
applies to all users, whatever their flags and files say. The daemon reads it when
it starts.`,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			about, err := c.Ping(ctx)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.stdout, about.GetPolicy())
			return err
		}),
	}
	onlyCommands(cmd, show)
	return cmd
}
