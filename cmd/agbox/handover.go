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

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// earlier returns the sandbox to take up: the newest that the preset has made for the folder,
// or the one with the name that was given; nil if a new one is to be made.
func (o *presetOptions) earlier(ctx context.Context, c *client.Client, folder string) (*agboxv1.GetSandboxResponse, error) {
	if folder == "" || o.anew || o.remove {
		return nil, nil
	}
	all, err := c.ListSandboxes(ctx, client.ListOptions{Labels: map[string]string{presetLabel: o.preset.Name}})
	found, _ := byFolder(near(all, folder))
	list := found[folder]
	if o.name != "" {
		list = slices.DeleteFunc(list, func(h *agboxv1.SandboxHandle) bool { return h.GetName() != o.name })
	}
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return c.GetSandbox(ctx, list[0].GetSandboxId())
}

// takeUp makes the sandbox ready that the preset has made earlier, and says which it is, what
// in it was not brought home, and how it differs from what would be made now.
func (o *presetOptions) takeUp(ctx context.Context, a *app, c *client.Client, found *agboxv1.GetSandboxResponse) error {
	h := found.GetSandbox()
	o.existing, o.named = h.GetSandboxId(), h.GetName()
	if err := o.keepOff(a, h); err != nil {
		return err
	}
	again := "`agbox " + o.preset.Name + " --new` makes another."
	text := fmt.Sprintf("Taking up sandbox %s, made %s", nameOf(h), a.since(h.GetCreatedAt()))
	if err := o.wake(ctx, a, c, h); err != nil {
		return fmt.Errorf("sandbox %s of this folder cannot be taken up: %w %s", nameOf(h), err, again)
	}
	ready, err := c.GetSandbox(ctx, o.existing)
	if err != nil {
		return err
	}
	left, err := losses(ctx, c, ready.GetSandbox())
	if err != nil {
		return err
	}
	if home := left.home(); home != "" {
		text += ", with " + home + " not brought home"
	}
	if left.commands != "" {
		again = fmt.Sprintf("It has %s: `agbox attach %s` goes there. ", left.commands, nameOf(h)) + again
	}
	a.say("%s. %s", text, again)
	return o.sayChanged(ctx, a, c, found)
}

// wake starts a sandbox that does not run.
func (o *presetOptions) wake(ctx context.Context, a *app, c *client.Client, h *agboxv1.SandboxHandle) error {
	switch h.GetState() {
	case agboxv1.SandboxState_SANDBOX_STATE_READY:
		return nil
	case agboxv1.SandboxState_SANDBOX_STATE_PENDING:
	default:
		if err := c.ResumeSandbox(ctx, h.GetSandboxId()); err != nil {
			return err
		}
	}
	p := &progress{app: a}
	defer p.clear()
	_, err := c.WaitReady(ctx, h.GetSandboxId(), client.OnEvent(h.GetLastEventSequence(), p.show))
	return err
}

// keepOff leaves the settings of the folder out if nobody has agreed to them now, or when the
// sandbox was made.
func (o *presetOptions) keepOff(a *app, h *agboxv1.SandboxHandle) error {
	if h.GetLabels()[settingsLabel] == settingsOff {
		if !o.off {
			a.say("%s starts without the settings of this folder, as when sandbox %s was made.", o.preset.Title, nameOf(h))
		}
		o.off = true
		return nil
	}
	if o.off && len(o.preset.Off) == 0 {
		return usagef("%s has no switch to leave out settings of the folder in sandbox %s, which was made with them. Agree to them on a terminal, give --trust, or make another sandbox with --new.",
			o.preset.Title, nameOf(h))
	}
	return nil
}

// sayChanged says how a sandbox differs from what would be made now.
func (o *presetOptions) sayChanged(ctx context.Context, a *app, c *client.Client, found *agboxv1.GetSandboxResponse) error {
	o.quiet = true
	input, err := o.request(ctx, a, c, []string{found.GetSandbox().GetName()}, nil)
	o.quiet = false
	if err != nil {
		return err
	}
	now, problem, err := resolveQuietly(ctx, c, input.Request)
	switch {
	case err != nil:
		return err
	case problem != "":
		a.say("The sandbox stays as it was made: %s", problem)
		return nil
	case now == nil:
		return nil // an old daemon cannot say
	}
	now.Labels = found.GetCreateSpec().GetLabels()
	if changed := differs(now, found.GetCreateSpec()); changed != "" {
		a.say("It was made from another version of the file or the image, or with other flags and variables (%s), and stays as it is.", changed)
	}
	return nil
}
