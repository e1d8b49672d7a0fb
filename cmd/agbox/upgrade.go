package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

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
			a.noAutostart = true
			if binary != "" {
				abs, err := filepath.Abs(binary)
				if err != nil {
					return err
				}
				binary = abs
			}
			return a.with(func(ctx context.Context, c *client.Client, _ []string) error {
				ctx, cancel := context.WithTimeout(ctx, upgradeBound)
				defer cancel()
				done, err := c.UpgradeDaemon(ctx, binary)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(a.stdout, "agboxd (pid %d) was upgraded from %s to %s.\n", done.PID, done.OldVersion, done.NewVersion)
				return err
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&binary, "binary", "", "`PATH` of the new agboxd; its agbox-init must be in the same folder")
	return cmd
}
