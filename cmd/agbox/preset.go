package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	"github.com/agbox/agbox/spec/presets"
)

// presetToolCommand shows and builds what `agbox claude` and its like use.
func (a *app) presetToolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "preset COMMAND",
		Short: "Show and build the images of agbox claude, codex, opencode and gemini",
	}
	onlyCommands(cmd)
	for _, sub := range []*cobra.Command{a.presetLsCommand(), a.presetShowCommand(), a.presetBuildCommand()} {
		sub.DisableFlagsInUseLine = true
		cmd.AddCommand(sub)
	}
	return cmd
}

// addBase adds --base to a command.
func addBase(cmd *cobra.Command, base *string) {
	cmd.Flags().StringVar(base, "base", "", "Debian `IMAGE` that the preset's image is made from (default: $"+presets.BaseEnv+" or "+presets.DefaultBase+")")
}

// onePreset are the arguments of a command that takes a preset.
func onePreset(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("Name a preset: %s.", strings.Join(presets.Names(), ", "))
	}
	if presets.Find(args[0]) == nil {
		return usagef("%q is not a preset. The presets are %s.", args[0], strings.Join(presets.Names(), ", "))
	}
	return nil
}

// presetItem is a preset in JSON.
type presetItem struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Package string `json:"package"`
	Version string `json:"version"`
	Base    string `json:"base"`
	Image   string `json:"image"`
	Built   bool   `json:"built"`
}

func (a *app) presetLsCommand() *cobra.Command {
	var out output
	var base string
	cmd := &cobra.Command{
		Use:               "ls [flags]",
		Short:             "List the presets, and whether their images are built",
		Args:              arguments(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			names, err := imageNames(ctx, c)
			if err != nil {
				return err
			}
			var items []presetItem
			var rows [][]view.Cell
			for _, p := range presets.All() {
				image := presetImage{preset: &p, base: a.presetBase(base), uid: callerUID()}
				built := "not built"
				if names[image.name()] {
					built = "built"
				}
				items = append(items, presetItem{
					Name: p.Name, Title: p.Title, Package: p.Package, Version: p.Version,
					Base: image.base, Image: image.name(), Built: names[image.name()],
				})
				rows = append(rows, cells(p.Name, p.Title, p.Version, built, image.name()))
			}
			if out.format == formatJSON {
				return printJSON(a.stdout, items)
			}
			return a.printTable(out, presetColumns, rows)
		}),
	}
	addBase(cmd, &base)
	addTable(cmd, &out)
	return cmd
}

// presetColumns are the columns of the table of presets.
var presetColumns = []view.Column{{Title: "NAME"}, {Title: "AGENT", Omit: 1}, {Title: "VERSION"}, {Title: "STATE"}, {Title: "IMAGE", Min: 16}}

func (a *app) presetShowCommand() *cobra.Command {
	var base string
	cmd := &cobra.Command{
		Use:   "show NAME [flags]",
		Short: "Print the Dockerfile of a preset",
		Long: `Print the Dockerfile that the preset's image is built from, with its arguments filled
in. It is a start for an image of your own, which agbox takes with --image.`,
		Example:   "  agbox preset show claude >Dockerfile",
		ValidArgs: presets.Names(),
		Args:      onePreset,
		RunE: func(_ *cobra.Command, args []string) error {
			a.began = true
			_, err := fmt.Fprint(a.stdout, presets.Find(args[0]).Recipe(a.presetBase(base), callerUID()))
			return err
		},
	}
	addBase(cmd, &base)
	return cmd
}

func (a *app) presetBuildCommand() *cobra.Command {
	var base string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "build NAME [flags]",
		Short: "Build the image of a preset now, not at its first use",
		Long: `Build the image of a preset and print its name. The output of the build goes to
stderr. The engine builds only the steps that it has not built before.`,
		Example: `  agbox preset build claude
  agbox preset build codex --base node:22-bookworm-slim`,
		ValidArgs: presets.Names(),
		Args:      onePreset,
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			image := presetImage{preset: presets.Find(args[0]), base: a.presetBase(base), uid: callerUID()}
			_, err := image.build(ctx, a, c, func(text string) {
				if !quiet {
					a.printBuild(text)
				}
			})
			if err == nil {
				_, err = fmt.Fprintln(a.stdout, image.name())
			}
			return err
		}),
	}
	addBase(cmd, &base)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the name of the image")
	return cmd
}
