package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
	onlyCommands(cmd, ls)
	return cmd
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
	var items []toolItem
	var lacks []string
	for _, name := range names {
		for _, found := range host.Find(projections.Find(name)) {
			items = append(items, toolItem{
				Tool: name, What: found.What, Kind: string(found.Kind), Source: found.Source, Target: found.To,
				Envs: found.Envs, Required: found.Required, Missing: found.Missing,
			})
			if found.Missing != "" && found.Hint != "" {
				lacks = append(lacks, fmt.Sprintf("%s: %s", name, found.Missing))
			}
		}
	}
	err := printList(a, f, items, toolColumns, eachRow(func(i toolItem) []view.Cell {
		from := i.Source
		switch {
		case i.Missing != "" && i.Required:
			from = "missing, required"
		case i.Missing != "":
			from = "missing"
		case i.Kind == string(projections.File):
			from = "-"
		}
		return cells(i.Tool, i.What, i.Kind, tilde(from, host.Home), i.Target)
	}))
	if err != nil || f.raw() {
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

// noExtras is the value of --with that hands over nothing beside the login.
const noExtras = "none"

// remembered is the user's answer about what presets get beside the login.
type remembered struct {
	With []string `json:"with"`
}

// extras are the built-in tools that a preset gets beside the login: those of --with, else
// those of the remembered answer. Without both, a person on a terminal is asked once, and
// a script gets none.
func (o *presetOptions) extras(ctx context.Context, a *app) ([]string, error) {
	if len(o.with) > 0 {
		return namedExtras(a, o.with)
	}
	install, err := paths.FromEnv()
	if err != nil {
		return nil, err
	}
	var answer remembered
	text, err := os.ReadFile(install.Handover())
	switch {
	case err == nil && json.Unmarshal(text, &answer) == nil:
		return slices.DeleteFunc(answer.With, func(name string) bool { return !slices.Contains(presetExtras, name) || missing(a, name) != "" }), nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return o.askForExtras(ctx, a, install.Handover())
}

// namedExtras checks the names of --with.
func namedExtras(a *app, names []string) ([]string, error) {
	if slices.Contains(names, noExtras) {
		if len(names) > 1 {
			return nil, usagef("--with %s excludes the other names.", noExtras)
		}
		return nil, nil
	}
	for _, name := range names {
		if !slices.Contains(presetExtras, name) {
			return nil, usagef("--with %.80q is not %s or %s.", name, strings.Join(presetExtras, ", "), noExtras)
		}
		if sentence := missing(a, name); sentence != "" {
			return nil, usagef("--with %s: %s", name, sentence)
		}
	}
	return names, nil
}

// missing says why this machine has nothing of a tool to hand over, or lacks what the tool
// requires; empty if it can be handed over.
func missing(a *app, tool string) string {
	sentence, some := "", false
	for _, found := range a.host().Find(projections.Find(tool)) {
		switch {
		case found.Missing == "":
			some = true
		case found.Required:
			return found.Missing
		default:
			sentence = found.Missing
		}
	}
	if some {
		return ""
	}
	return sentence
}

// askForExtras asks a person on a terminal about each of the tools that this machine has,
// and remembers the answers in file.
func (o *presetOptions) askForExtras(ctx context.Context, a *app, file string) ([]string, error) {
	here := slices.DeleteFunc(slices.Clone(presetExtras), func(name string) bool { return missing(a, name) != "" })
	if a.terminal() == nil || a.width() == 0 || len(here) == 0 {
		return nil, nil
	}
	a.say("Agents get a copy of the folder and their own login. You are asked once what else they get.")
	answer := remembered{With: []string{}}
	for _, name := range here {
		tool := projections.Find(name)
		yes, err := a.confirm(ctx, fmt.Sprintf("Hand over %s (%s)?", name, tool.Description))
		if err != nil {
			return nil, err
		}
		if yes {
			answer.With = append(answer.With, name)
		}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return nil, err
	}
	a.say("Remembered in %s. --with overrides it; remove the file to be asked again.", tilde(file, a.host().Home))
	return answer.With, nil
}

// loginLack says why this machine has no login to hand over, unless a variable replaces it:
// one of the caller that is handed over, or one of the flags and the sandbox file.
func (o *presetOptions) loginLack(a *app) string {
	if o.described == nil {
		return "" // create reports what is wrong with the sandbox file
	}
	replaces := func(name string) bool {
		own, _ := a.lookupEnv(name)
		return o.described.GetEnvs()[name] != "" || own != "" && slices.Contains(o.preset.Keys, name)
	}
	for _, found := range a.host().Find(projections.Find(o.preset.Tool)) {
		if found.Required && found.Missing != "" && !slices.ContainsFunc(found.UnlessEnv, replaces) {
			return found.Missing
		}
	}
	return ""
}

// handedOver is the line that says what a preset gets from this machine, and the lines
// about what it does not find here.
func (o *presetOptions) handedOver(a *app, variables []string) (line string, lacks []string) {
	var parts []string
	switch {
	case o.mountWorkspace != "":
		parts = append(parts, "the folder "+o.mountWorkspace+", writable")
	case o.workspace != "":
		parts = append(parts, "a copy of "+o.workspace)
	case o.described.GetWorkspace() != nil:
		parts = append(parts, "the workspace of the sandbox file")
	}
	for _, name := range o.tools {
		tool := projections.Find(name)
		if tool == nil {
			continue // create reports it
		}
		for _, found := range a.host().Find(tool) {
			switch {
			case found.Missing != "":
				lacks = append(lacks, found.Missing)
			case found.Kind != projections.File:
				parts = append(parts, found.What)
			}
		}
	}
	for _, name := range variables {
		parts = append(parts, "variable "+name)
	}
	if len(parts) == 0 {
		parts = []string{"nothing"}
	}
	return fmt.Sprintf("%s gets %s.", o.preset.Name, strings.Join(parts, ", ")), lacks
}
