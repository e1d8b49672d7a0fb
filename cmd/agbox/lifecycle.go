package main

import (
	"context"
	"fmt"

	"github.com/agbox/agbox/client"
)

// change moves sandboxes from one state to another.
type change struct {
	// ask requests the change from the daemon.
	ask func(ctx context.Context, id string) error
	// said is called before wait; it may be nil.
	said func(ctx context.Context, id string)
	// wait returns when the change is complete; nil does not wait.
	wait func(ctx context.Context, id string) error
	// ignore tells which errors of the look-up and of ask to ignore; nil ignores none.
	ignore func(error) bool
}

// apply requests all changes first and then waits for each, so many sandboxes take
// about as long as one. It prints the ids of the sandboxes that are done.
func (ch change) apply(ctx context.Context, a *app, c *client.Client, refs []string) error {
	var ids []string
	failed := a.each(ctx, refs, func(ref string) error {
		id, err := a.sandbox(ctx, c, ref, changes)
		if err == nil {
			err = ch.ask(ctx, id)
		}
		if err != nil {
			if ch.ignore != nil && ch.ignore(err) {
				return nil
			}
			return err
		}
		ids = append(ids, id)
		return nil
	})
	if ctx.Err() != nil {
		return failed
	}
	late := a.each(ctx, ids, func(id string) error {
		if ch.wait != nil {
			if ch.said != nil {
				ch.said(ctx, id)
			}
			if err := ch.wait(ctx, id); err != nil {
				return err
			}
		}
		_, err := fmt.Fprintln(a.stdout, id)
		return err
	})
	if failed != nil && ctx.Err() == nil {
		return failed
	}
	return late
}
