package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/client"
)

// servedSandboxes is how many sandboxes with two services each are made.
// AGBOX_BENCH_SANDBOXES sets another number.
const servedSandboxes = 100

// benchServices makes sandboxes with two services each, lists and inspects them,
// and removes them all.
func benchServices(ctx context.Context) error {
	number, err := sandboxes(servedSandboxes)
	if err != nil {
		return err
	}
	return withInstall(func(c *client.Client, _ func(...string) error) error {
		fmt.Printf("%d sandboxes with two services each: %d containers, %d networks; %d at a time\n", number, 3*number, number, makers)
		whole := time.Now()
		created, err := timed(number, func(int) error { return makeServed(ctx, c) })
		if err != nil {
			return err
		}
		row("create, until ready", created, time.Since(whole))

		var listed, looked figures
		var boxes []*agboxv1.SandboxHandle
		for range block {
			err := listed.time(func() (err error) {
				boxes, err = c.ListSandboxes(ctx, client.ListOptions{})
				return err
			})
			if err != nil {
				return err
			}
		}
		if err := allServed(boxes, number); err != nil {
			return err
		}
		row("list all", listed, 0)
		for _, b := range boxes {
			err := looked.time(func() error {
				_, err := c.GetSandbox(ctx, b.GetSandboxId())
				return err
			})
			if err != nil {
				return err
			}
		}
		row("inspect one", looked, 0)

		whole = time.Now()
		gone, err := timed(number, func(i int) error {
			if err := c.DeleteSandbox(ctx, boxes[i].GetSandboxId()); err != nil {
				return err
			}
			return c.WaitDeleted(ctx, boxes[i].GetSandboxId())
		})
		if err != nil {
			return err
		}
		row("remove, until nothing is left", gone, time.Since(whole))
		return nil
	})
}

// makeServed makes a sandbox with a web server and a service that depends on it.
func makeServed(ctx context.Context, c *client.Client) error {
	box, err := c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{
		Image: image,
		Services: []*agboxv1.ServiceSpec{
			{Name: "web", Image: image, Command: []string{"httpd", "-f", "-p", "80"}, Required: proto.Bool(true)},
			{Name: "job", Image: image, Command: []string{"sleep", "1000000"}, Required: proto.Bool(true), DependsOn: []*agboxv1.ServiceDependency{{Name: "web"}}},
		},
	}})
	if err != nil {
		return err
	}
	_, err = c.WaitReady(ctx, box.GetSandboxId())
	return err
}

func allServed(boxes []*agboxv1.SandboxHandle, number int) error {
	if len(boxes) != number {
		return fmt.Errorf("%d sandboxes are listed, want %d", len(boxes), number)
	}
	for _, b := range boxes {
		for _, s := range b.GetServiceStatus() {
			if s.GetState() != agboxv1.ServiceState_SERVICE_STATE_READY {
				return fmt.Errorf("service %s of sandbox %s is %s: %s", s.GetName(), b.GetSandboxId(), s.GetState(), s.GetErrorMessage())
			}
		}
	}
	return nil
}

// timed does the work for all numbers below count, several concurrently.
func timed(count int, work func(int) error) (figures, error) {
	var all figures
	var mu sync.Mutex // guards all
	err := each(makers, count, func(i int) error {
		var one figures
		err := one.time(func() error { return work(i) })
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one...)
		return err
	})
	return all, err
}

// row prints the figures of one kind of work and its total time.
func row(what string, f figures, whole time.Duration) {
	fmt.Printf("  %-30s %s", what, f)
	if whole > 0 {
		fmt.Printf("   all in %.1f s", whole.Seconds())
	}
	fmt.Println()
}

// sandboxes returns the number of sandboxes of a benchmark.
func sandboxes(standard int) (int, error) {
	text := os.Getenv("AGBOX_BENCH_SANDBOXES")
	if text == "" {
		return standard, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("AGBOX_BENCH_SANDBOXES is %q: give a number of 1 or more", text)
	}
	return n, nil
}
