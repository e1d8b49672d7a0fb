package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/daemon"
)

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
