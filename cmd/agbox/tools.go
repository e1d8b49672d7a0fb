package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/projections"
)

func (a *app) toolsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tools COMMAND",
		Short: "Show the built-in tools that can be brought into a sandbox",
	}
	onlyCommands(cmd)
	var f format
	ls := &cobra.Command{
		Use:   "ls [TOOL...]",
		Short: "List the tools with what they would bring in from here",
		Long: `List the built-in tools: what --tool NAME, or builtin_tools in a sandbox file,
would bring into a sandbox from here, and what for that is missing. mount is bound
read-only; copy is copied in, so that nothing that is done to it reaches this
machine; cache is a folder of agbox's own that all sandboxes share and may write to:
leave caches out of sandboxes that must not trust each other; file is a small file
that agbox writes.`,
		ValidArgs: projections.Names(),
		Args: func(_ *cobra.Command, args []string) error {
			for _, name := range args {
				if projections.Find(name) == nil {
					return usagef("There is no built-in tool %q. There are %s.", name, strings.Join(projections.Names(), ", "))
				}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			a.began = true
			return a.listTools(args, f)
		},
	}
	addFormat(ls, &f)
	ls.DisableFlagsInUseLine = true
	cmd.AddCommand(ls)
	return cmd
}

// host is this machine as tools see it.
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

func (a *app) listTools(names []string, f format) error {
	if len(names) == 0 {
		names = projections.Names()
	}
	host := a.host()
	items := []toolItem{}
	var rows [][]string
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
			rows = append(rows, []string{name, found.What, string(found.Kind), printable(tilde(from, host.Home)), found.To})
		}
	}
	if f == formatJSON {
		return printJSON(a.stdout, items)
	}
	if err := printTable(a.stdout, []string{"TOOL", "WHAT", "HOW", "FROM HERE", "TO"}, rows); err != nil {
		return err
	}
	for _, lack := range lacks {
		a.say("%s", printable(lack))
	}
	return nil
}

// tilde shortens a path below the home.
func tilde(path, home string) string {
	if rest, ok := strings.CutPrefix(path, home+string(filepath.Separator)); ok && home != "" {
		return "~/" + rest
	}
	return path
}
