package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/daemon"
)

// preflightCommand is what a running daemon asks of the binary that it is to
// become. It takes the flags of "run" too: what this binary would refuse must be
// known before the old one has ended.
func preflightCommand(usage *bool) *cobra.Command {
	var asked daemon.Successor
	cmd := runCommand(usage, func(_ context.Context, cfg daemon.Config) error {
		return asked.Check(cfg.Paths, os.Stdout)
	})
	cmd.Use = "preflight"
	cmd.Short = "Tell a running daemon whether this binary can take over from it; changes nothing"
	cmd.Hidden = true
	flags := cmd.Flags()
	flags.Uint32Var(&asked.Schema, "schema", 0, "version of the schema of the open database")
	flags.StringVar(&asked.Data, "data", "", "data directory of the running daemon")
	flags.StringVar(&asked.Socket, "socket", "", "socket of the running daemon")
	return cmd
}
