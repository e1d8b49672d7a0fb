package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
