package main

import (
	"context"
	"fmt"
	"io"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/client"
)

const (
	// gone is how many deleted sandboxes are kept, and busyExecs how many execs one of them ran.
	gone, busyExecs = 100, 1000
	// readRounds is how often each is read.
	readRounds = 50
)

// benchReads measures reads of sandboxes that live and of deleted ones.
func benchReads(ctx context.Context) error {
	return withInstall(func(c *client.Client, _ func(...string) error) (err error) {
		busy, err := gather(ctx, c)
		if err != nil {
			return err
		}
		living, err := c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: image}})
		if err != nil {
			return err
		}
		if _, err := c.WaitReady(ctx, living.GetSandboxId()); err != nil {
			return err
		}
		get := func(id string) func() error {
			return func() error {
				_, err := c.GetSandbox(ctx, id)
				return err
			}
		}
		list := func(o client.ListOptions) func() error {
			return func() error {
				_, err := c.ListSandboxes(ctx, o)
				return err
			}
		}
		all, err := c.ListSandboxes(ctx, client.ListOptions{IncludeDeleted: true})
		if err != nil {
			return err
		}
		quiet := all[len(all)-1].GetSandboxId()
		fmt.Printf("reads beside %d deleted sandboxes, %d times each\n", gone, readRounds)
		for _, row := range []struct {
			what string
			read func() error
		}{
			{"a living sandbox", get(living.GetSandboxId())},
			{"a deleted sandbox", get(quiet)},
			{fmt.Sprintf("a deleted sandbox that ran %d commands", busyExecs), get(busy)},
			{"a list of those that live", list(client.ListOptions{})},
			{"a list of all", list(client.ListOptions{IncludeDeleted: true})},
		} {
			var took figures
			for range readRounds {
				if err := took.time(row.read); err != nil {
					return err
				}
			}
			fmt.Printf("  %-44s %s\n", row.what, took)
		}
		return nil
	})
}

// gather makes the deleted sandboxes, and returns the one that ran many execs.
func gather(ctx context.Context, c *client.Client) (busy string, err error) {
	ids := make([]string, gone)
	err = each(makers, gone, func(i int) error {
		sb, err := c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: image}})
		if err != nil {
			return err
		}
		ids[i] = sb.GetSandboxId()
		if i > 0 {
			return nil // it need not have been READY
		}
		_, err = c.WaitReady(ctx, ids[i])
		return err
	})
	if err != nil {
		return "", err
	}
	err = each(makers, busyExecs, func(int) error {
		_, err := c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: ids[0], Command: []string{"true"}}, io.Discard, io.Discard)
		return err
	})
	if err != nil {
		return "", err
	}
	return ids[0], empty(ctx, c)
}
