package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/cmd/agbox/view"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/spec/projections"
)

func (a *app) toolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tools COMMAND",
		Short: "Show the built-in tools that can be added to a sandbox",
	}
	onlyCommands(cmd)
	var f output
	ls := &cobra.Command{
		Use:   "ls [TOOL...]",
		Short: "List the tools and what they would add from this machine",
		Long: `List the built-in tools: what --tool NAME, or builtin_tools in a sandbox file, would
add to a sandbox from this machine, and what is missing for it. HOW is one of:

  mount  mounted read-only
  copy   copied in, so changes in the sandbox do not reach this machine
  cache  a folder of agbox that all sandboxes share and can write to; do not
         enable caches in sandboxes that must not trust each other
  file   a small file that agbox writes`,
		ValidArgs: projections.Names(),
		Args: func(_ *cobra.Command, args []string) error {
			for _, name := range args {
				if projections.Find(name) == nil {
					return usagef("%q is not a built-in tool. The built-in tools are %s.", name, strings.Join(projections.Names(), ", "))
				}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			a.began = true
			return a.listTools(args, f)
		},
	}
	addTable(ls, &f)
	ls.DisableFlagsInUseLine = true
	cmd.AddCommand(ls)
	return cmd
}

// host is this machine as the tools see it: home, caches and environment.
func (a *app) host() projections.Host {
	h := projections.Host{Env: make(map[string]string)}
	if home, err := os.UserHomeDir(); err == nil {
		h.Home = home
	}
	if install, err := paths.FromEnv(); err == nil {
		h.Caches = install.ToolCaches()
	}
	for _, name := range projections.Variables() {
		h.Env[name], _ = a.lookupEnv(name)
	}
	return h
}

// toolItem is an item in JSON.
type toolItem struct {
	Tool     string            `json:"tool"`
	What     string            `json:"what"`
	Kind     string            `json:"kind"`
	Source   string            `json:"source"`
	Target   string            `json:"target"`
	Envs     map[string]string `json:"envs"`
	Required bool              `json:"required"`
	Missing  string            `json:"missing"`
}

func (a *app) listTools(names []string, f output) error {
	if len(names) == 0 {
		names = projections.Names()
	}
	host := a.host()
	items := []toolItem{}
	var rows [][]view.Cell
	var lacks []string
	for _, name := range names {
		for _, found := range host.Find(projections.Find(name)) {
			items = append(items, toolItem{
				Tool: name, What: found.What, Kind: string(found.Kind), Source: found.Source, Target: found.To,
				Envs: found.Envs, Required: found.Required, Missing: found.Missing,
			})
			from := found.Source
			switch {
			case found.Missing != "" && found.Required:
				from = "missing, required"
			case found.Missing != "":
				from = "missing"
			case found.Kind == projections.File:
				from = "-"
			}
			if found.Missing != "" && found.Hint != "" {
				lacks = append(lacks, fmt.Sprintf("%s: %s", name, found.Missing))
			}
			rows = append(rows, cells(name, found.What, string(found.Kind), tilde(from, host.Home), found.To))
		}
	}
	if f.format == formatJSON {
		return printJSON(a.stdout, items)
	}
	if err := a.printTable(f, toolColumns, rows); err != nil {
		return err
	}
	for _, lack := range lacks {
		a.say("%s", printable(lack))
	}
	return nil
}

// toolColumns are the columns of the table of tools.
var toolColumns = []view.Column{
	{Title: "TOOL"}, {Title: "WHAT", Min: 10, Omit: 1}, {Title: "HOW"}, {Title: "FROM HERE", Min: 20}, {Title: "TO", Min: 20},
}

// tilde shortens a path below the home directory.
func tilde(path, home string) string {
	if rest, ok := strings.CutPrefix(path, home+string(filepath.Separator)); ok && home != "" {
		return "~/" + rest
	}
	return path
}
