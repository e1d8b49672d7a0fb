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

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/spec/presets"
	"github.com/agbox/agbox/spec/projections"
)

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
		return slices.DeleteFunc(answer.With, func(name string) bool { return !slices.Contains(presets.Extras, name) || missing(a, name) != "" }), nil
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
		if !slices.Contains(presets.Extras, name) {
			return nil, usagef("--with %.80q is not %s or %s.", name, strings.Join(presets.Extras, ", "), noExtras)
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
	here := slices.DeleteFunc(slices.Clone(presets.Extras), func(name string) bool { return missing(a, name) != "" })
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
