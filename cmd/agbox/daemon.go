package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
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
	onlyCommands(cmd)
	cmd.AddCommand(a.daemonRunCommand(), a.daemonStartCommand(), a.daemonStopCommand(), a.daemonUpgradeCommand(), a.daemonStatusCommand(), a.daemonLogsCommand())
	for _, sub := range cmd.Commands() {
		sub.Args = arguments(0, 0, "")
		sub.ValidArgsFunction = cobra.NoFileCompletions
		sub.DisableFlagsInUseLine = true
	}
	return cmd
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

// ownSocketOnly refuses --socket: a daemon derives the path from its environment.
func (a *app) ownSocketOnly() error {
	if a.socket != "" {
		return usagef("The daemon derives its socket path from AGBOX_HOME or XDG_RUNTIME_DIR: set one of them instead of --socket.")
	}
	return nil
}

func (a *app) daemonStopCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Stop the daemon; sandboxes and commands keep running",
		RunE: func(cmd *cobra.Command, args []string) error {
			a.noAutostart = true
			return a.with(func(ctx context.Context, c *client.Client, _ []string) error {
				ctx, cancel := context.WithTimeout(ctx, stopBound)
				defer cancel()
				pid, err := c.StopDaemon(ctx)
				if errors.Is(err, client.ErrDaemonNotRunning) {
					a.say("agboxd is not running: no process listens on %s.", c.Socket())
					return nil
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(a.stdout, "agboxd (pid %d) has stopped. Sandboxes and commands keep running.\n", pid)
				return err
			})(cmd, args)
		},
	}
}

func (a *app) daemonStatusCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show whether the daemon runs, with its version, paths and engine",
		RunE: func(cmd *cobra.Command, args []string) error {
			a.noAutostart = true
			return a.with(func(ctx context.Context, c *client.Client, _ []string) error {
				ctx, cancel := context.WithTimeout(ctx, glance)
				defer cancel()
				p, err := c.Ping(ctx)
				switch {
				case err != nil:
					return err
				case out == formatJSON:
					return printStatusJSON(a, c.Socket(), p)
				}
				return printStatus(a, c.Socket(), p)
			})(cmd, args)
		},
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
