package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	"github.com/agbox/agbox/spec/trust"
)

func (a *app) trustCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust COMMAND",
		Short: "Decide what sandbox files may access on this machine",
		Long: `Decide what sandbox files may access on this machine.

A sandbox file that comes with a folder may request mounts, copies from other
folders, ports, tools and variables of this machine. agbox asks you once, and your
answer holds for exactly this content: if the file changes, agbox shows the
difference and asks again. A file that requests nothing is used without a question.
agbox never asks about flags, because you gave them yourself.`,
	}
	onlyCommands(cmd, a.trustReviewCommand(), a.trustListCommand(), a.trustShowCommand(), a.trustRevokeCommand())
	return cmd
}

func (a *app) trustReviewCommand() *cobra.Command {
	var o specOptions
	cmd := &cobra.Command{
		Use:   "review [FILE] [flags]",
		Short: "Show what a sandbox file requests, and decide",
		Long: `Show what a sandbox file requests of this machine and decide about it, without
creating a sandbox. The default FILE is the agbox.yaml of this folder.`,
		Args: arguments(0, 1, "one FILE"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			input, out, err := o.resolve(ctx, a, c, args)
			if err != nil {
				return err
			}
			if question(input, out.GetHostRequests()) == nil {
				_, err = fmt.Fprintln(a.stdout, "The sandbox spec requests nothing of this machine, so no decision is needed.")
				return err
			}
			if err := o.agree(ctx, a, input, out.GetHostRequests()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s is trusted with its current content.\n", printable(input.Files[0].Path))
			return err
		}),
	}
	o.addFlags(cmd)
	return cmd
}

// trusted makes the RunE of a command on the stored answers. It needs no daemon.
func (a *app) trusted(do func(store trust.Store, args []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		a.began = true
		store, err := trustStore()
		if err != nil {
			return err
		}
		return do(store, args)
	}
}

func (a *app) trustListCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the files that you trust",
		RunE: a.trusted(func(store trust.Store, _ []string) error {
			all, err := store.List()
			if err != nil {
				return err
			}
			return printList(a, out, all, []view.Column{
				{Title: "FILE", Min: 16}, {Title: "REQUESTS", Right: true, Omit: 1}, {Title: "DANGEROUS", Right: true}, {Title: "TRUSTED", Omit: 2},
			}, eachRow(func(t trust.Answer) []view.Cell {
				return append(cells(t.Path, fmt.Sprint(len(t.Requests)), fmt.Sprint(dangerous(t.Requests))), a.agoCell(t.TrustedAt))
			}))
		}),
	}
	addTable(cmd, &out)
	return cmd
}

func (a *app) trustShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show FILE",
		Short: "Show what you agreed to for a file, with its content",
		Args:  arguments(1, 1, "a FILE"),
		RunE: a.trusted(func(store trust.Store, args []string) error {
			answer, err := findAnswer(store, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "%s, trusted on %s:\n\n", printable(answer.Path), answer.TrustedAt.Local().Format("2006-01-02 15:04"))
			for _, r := range answer.Requests {
				mark := " "
				if r.Dangerous {
					mark = "!"
				}
				fmt.Fprintf(a.stdout, "  %s %s  %s\n", mark, printable(r.Text), printable(r.Where))
			}
			for _, f := range answer.Files {
				content := f.Content
				if f.Secret {
					content = "(its values are not stored)\n"
				}
				fmt.Fprintf(a.stdout, "\n--- %s\n%s", printable(f.Path), printableLines(content))
			}
			return nil
		}),
	}
}

func (a *app) trustRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke FILE...",
		Short: "Stop trusting a file; agbox asks again",
		Args:  arguments(1, -1, "a FILE"),
		RunE: a.trusted(func(store trust.Store, args []string) error {
			for _, name := range args {
				answer, err := findAnswer(store, name)
				if err != nil {
					return err
				}
				if err := store.Revoke(answer.Path); err != nil {
					return err
				}
				a.say("%s is no longer trusted. Existing sandboxes keep their access.", answer.Path)
			}
			return nil
		}),
	}
}

// findAnswer finds the answer for a file, or for the agbox.yaml of a folder.
func findAnswer(store trust.Store, name string) (*trust.Answer, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	for _, candidate := range []string{path, filepath.Join(path, defaultSpecFile)} {
		_, before, err := store.Trusted(trust.Question{Path: candidate})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if before != nil {
			return before, nil
		}
	}
	return nil, usagef("%s is not trusted. `agbox trust ls` lists the trusted files.", printable(path))
}
