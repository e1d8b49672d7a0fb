package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type completer = func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective)

// completeSandboxes completes the first most arguments (all if most is negative) with
// the names of the sandboxes that exist, or the ids of those without a name.
func (a *app) completeSandboxes(most int) completer {
	return a.complete(most, listSandboxes)
}

// completeImages does the same with the names of the engine's images.
func (a *app) completeImages(most int) completer {
	return a.complete(most, listImages)
}

// completeBoth completes all arguments with sandboxes, then with running commands.
func (a *app) completeBoth() completer { return a.complete(-1, listSandboxes, listExecs) }

// completeExecsFirst completes the first most arguments with running commands, then with
// sandboxes.
func (a *app) completeExecsFirst(most int) completer {
	return a.complete(most, listExecs, listSandboxes)
}

// lister returns pairs of a name and a description, tab between.
type lister func(context.Context, *client.Client) ([]cobra.Completion, error)

func (a *app) complete(most int, lists ...lister) completer {
	return func(cmd *cobra.Command, args []string, prefix string) (all []cobra.Completion, directive cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, list := range lists {
			// A shell that waits for a completion must not start a daemon.
			if some, err := askRunning(cmd.Context(), a, list); err == nil {
				all = append(all, some...)
			}
		}
		return slices.DeleteFunc(all, func(one cobra.Completion) bool {
			return !strings.HasPrefix(one, prefix) || slices.Contains(args, strings.Split(one, "\t")[0])
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

func listSandboxes(ctx context.Context, c *client.Client) ([]cobra.Completion, error) {
	list, err := c.ListSandboxes(ctx, client.ListOptions{})
	return collect(list, func(h *agboxv1.SandboxHandle) cobra.Completion {
		return nameOf(h) + "\t" + sandboxState(h) + ", " + printable(h.GetImage())
	}), err
}

func listImages(ctx context.Context, c *client.Client) (all []cobra.Completion, err error) {
	images, err := c.ListImages(ctx)
	for _, i := range images {
		for _, name := range i.GetNames() {
			all = append(all, printable(name)+"\t"+byteCount(int64(i.GetSizeBytes())))
		}
	}
	return all, err
}

func listExecs(ctx context.Context, c *client.Client) ([]cobra.Completion, error) {
	list, err := c.ListActiveExecs(ctx, "")
	if err != nil {
		return nil, err
	}
	boxes, err := c.ListSandboxes(ctx, client.ListOptions{})
	names, bearers := make(map[string]string, len(boxes)), make(map[string]int)
	for _, h := range boxes {
		names[h.GetSandboxId()] = h.GetName()
	}
	for _, e := range list {
		bearers[e.GetName()]++
	}
	return collect(list, func(e *agboxv1.ExecStatus) cobra.Completion {
		ref := cmp.Or(e.GetName(), e.GetExecId())
		if e.GetMain() || e.GetName() != "" && bearers[e.GetName()] > 1 {
			// A name is unique only within a sandbox.
			ref = cmp.Or(names[e.GetSandboxId()], e.GetSandboxId()) + "/" + e.GetName()
		}
		return ref + "\t" + cut(shellWords(e.GetCommand()), commandWidth)
	}), err
}

// fileFlags are the flags whose values are, or begin with, a path of this machine.
var fileFlags = []string{
	"binary", "compose", "copy", "device", "devcontainer", "env-file", "file", "mount", "mount-workspace", "socket", "volume", "workspace",
}

// completeFlags sets the completion of flag values: images for --image, files only for
// fileFlags. A flag that already has a completion keeps it.
func (a *app) completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		offer := cobra.NoFileCompletions
		switch {
		case f.Name == "image":
			offer = a.completeImages(-1)
		case slices.Contains(fileFlags, f.Name):
			return
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, offer) // fails if the flag already has one
	})
	for _, sub := range cmd.Commands() {
		a.completeFlags(sub)
	}
}
