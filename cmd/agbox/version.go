package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/version"
)

// glance bounds optional requests, such as completion and the daemon's version.
const glance = 2 * time.Second

func (a *app) versionCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:               "version [flags]",
		Short:             "Show the versions of agbox and of the running daemon",
		Args:              arguments(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
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
		_, err := fmt.Fprintln(a.stdout, "agbox", version.Version)
		return err
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
	_, err := fmt.Fprintf(a.stdout, "agbox   %s\nagboxd  %s\n", version.Version, daemon)
	return err
}

// daemonVersion asks a running daemon for its version; empty if none answers.
func (a *app) daemonVersion(ctx context.Context) string {
	answer, err := a.glance(ctx, func(ctx context.Context, c *client.Client) (string, error) {
		out, err := c.Ping(ctx)
		return out.GetVersion(), err
	})
	if err != nil {
		return ""
	}
	return answer
}

// glance asks a running daemon without starting one. It fails after glance.
func (a *app) glance(ctx context.Context, ask func(context.Context, *client.Client) (string, error)) (string, error) {
	quiet := *a
	quiet.noAutostart = true
	c, err := quiet.client(client.WithReconnect(0))
	if err != nil {
		return "", err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, glance)
	defer cancel()
	return ask(ctx, c)
}
