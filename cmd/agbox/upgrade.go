package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
)

// upgradeBound is how long an upgrade may take: the check of the new binary, the
// end of what is under way, the start.
const upgradeBound = time.Minute

func (a *app) daemonUpgradeCommand() *cobra.Command {
	var binary string
	cmd := &cobra.Command{
		Use:   "upgrade [flags]",
		Short: "Replace the running daemon by a newer agboxd, unnoticed by callers",
		Long: `Replaces the running daemon by the agboxd that now stands at the path it was
started from, or by the one that --binary names. The new one is checked first;
one that is not fit changes nothing.

The process id stays, callers wait for some milliseconds, and streams go on where
they were. Sandboxes and commands are not touched. A daemon that gets SIGHUP does
the same.`,
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
	cmd.Flags().StringVar(&binary, "binary", "", "`PATH` of the new agboxd, which must have its agbox-init beside it")
	return cmd
}
