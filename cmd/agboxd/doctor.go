package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/agbox/agbox/daemon"
)

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
