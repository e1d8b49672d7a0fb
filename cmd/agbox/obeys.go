package main

import (
	"context"
	"slices"
	"strings"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/spec/notation"
	"github.com/agbox/agbox/spec/trust"
)

// obey makes sure that a person agrees to the files of the folder that make the agent run
// programs, or send the login elsewhere, before it has asked anything. Without a yes the
// agent starts without them.
func (o *presetOptions) obey(ctx context.Context, a *app, c *client.Client) error {
	folder := o.folder()
	if folder == "" || o.trust {
		return nil
	}
	q, err := o.obeyed(ctx, folder)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(q.Requests) == 0 && err == nil {
		return nil
	}
	if err == nil {
		yes, err := o.agreeToObey(ctx, a, c, q, folder)
		if yes || err != nil {
			return err
		}
	} else {
		a.say("%v.", err)
	}
	return o.leaveOut(a)
}

// folder is the folder that becomes the workspace; "" if there is none.
func (o *presetOptions) folder() string {
	folder, _ := notation.Workspace(firstOf(o.mountWorkspace, o.workspace))
	if folder == "" {
		folder = o.described.GetWorkspace().GetSource()
	}
	if folder == "" {
		return ""
	}
	return here(folder)
}

// agreeToObey reports whether a person, or the operator, agrees to the files.
func (o *presetOptions) agreeToObey(ctx context.Context, a *app, c *client.Client, q trust.Question, folder string) (bool, error) {
	store, err := trustStore()
	if err != nil {
		return false, err
	}
	known, before, err := store.Trusted(q)
	if known || err != nil {
		return known, err
	}
	if byPolicy, err := trustedByPolicy(ctx, c, folder); byPolicy || err != nil {
		return byPolicy, err
	}
	if !a.canAsk(q) {
		return false, nil
	}
	yes, err := a.ask(ctx, q, before, "Let "+o.preset.Title+" use them? Otherwise it starts without.")
	if yes {
		err = store.Remember(q, a.now())
	}
	return yes, err
}

// leaveOut starts the agent without the files, by its own switch, or else without a copy
// of them.
func (o *presetOptions) leaveOut(a *app) error {
	names := strings.Join(slices.Concat(o.preset.Obeys, o.preset.Imports), ", ")
	if o.preset.Copied && o.workspace == "" {
		return usagef("%s has no switch to leave out %s of a mounted folder: agree to them on a terminal, or give --trust.", o.preset.Title, names)
	}
	if o.preset.Copied {
		for _, name := range o.preset.Obeys {
			o.excludes = append(o.excludes, "/"+name)
		}
	}
	o.off = true
	o.labels = append(o.labels, settingsLabel+"="+settingsOff)
	a.say("%s starts without the %s of this folder, which nobody has agreed to. --trust uses them.", o.preset.Title, names)
	return nil
}
