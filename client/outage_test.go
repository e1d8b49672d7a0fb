package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// news collects what a client tells of outages.
type news struct {
	mu   sync.Mutex // guards told
	told []string
}

func (n *news) option() Option {
	return WithOutages(func(o Outage) {
		n.mu.Lock()
		defer n.mu.Unlock()
		word := "gone"
		switch {
		case o.Over:
			word = "over"
		case o.Failed != nil:
			word = "failed"
		case o.Stopped:
			word = "stopped"
		case o.Starting:
			word = "starting"
		}
		n.told = append(n.told, word)
	})
}

func (n *news) want(t *testing.T, want string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := strings.Join(n.told, " "); got != want {
		t.Errorf("told of %q, want %q", got, want)
	}
}

// firstEvent reads one event of a sandbox.
func firstEvent(ctx context.Context, c *Client) error {
	for _, err := range c.Events(ctx, "box", 0) {
		return err
	}
	return nil
}

func TestFollowersStartADaemonThatCrashesAndTellOfIt(t *testing.T) {
	config := inHome(t, "crashing wait")
	var followers sync.WaitGroup
	var clients [3]*Client
	var told [3]news
	for i := range clients {
		c, err := New(WithAutostart(config), told[i].option())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		clients[i] = c
	}
	for i, c := range clients {
		followers.Go(func() {
			if err := firstEvent(t.Context(), c); err != nil {
				t.Error(err)
			}
			// One that calls late finds the next daemon, and has nothing to tell.
			if len(told[i].told) > 0 {
				told[i].want(t, "starting over")
			}
		})
	}
	followers.Wait()
	if n := startsOf(t); n != 2 {
		t.Errorf("%d daemons were started, want the first and one after the crash", n)
	}
	stopper, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer stopper.Close()
	if _, err := stopper.StopDaemon(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFollowersDoNotStartADaemonThatWasStopped(t *testing.T) {
	for _, role := range []string{"stopping", "leaving"} {
		t.Run(role, func(t *testing.T) {
			var told news
			c, err := New(WithAutostart(inHome(t, role)), WithReconnect(3*outageAfter), told.option())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := firstEvent(t.Context(), c); !errors.Is(err, ErrDaemonUnreachable) {
				t.Errorf("it ended with %v", err)
			}
			told.want(t, "stopped")
			if n := startsOf(t); n != 1 {
				t.Errorf("%d daemons were started", n)
			}
		})
	}
}

func TestADaemonThatCannotBeStartedIsWaitedFor(t *testing.T) {
	config := inHome(t, "crashing wait")
	if _, err := StartDaemon(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	var told news
	missing := DaemonConfig{Binary: filepath.Join(shortDir(t), "agboxd")}
	c, err := New(WithAutostart(missing), WithReconnect(3*outageAfter), told.option())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// It is the reason that helps.
	if err := firstEvent(t.Context(), c); !errors.Is(err, ErrDaemonUnreachable) || !strings.Contains(err.Error(), missing.Binary) {
		t.Errorf("it ended with %v", err)
	}
	told.want(t, "starting failed")
}

func TestAnOutageIsToldOnceByAllStreams(t *testing.T) {
	h := serve(t, &script{})
	served := make(chan struct{}, 100)
	h.script.events = func(_ *agboxv1.SubscribeSandboxEventsRequest, s eventStream) error {
		served <- struct{}{}
		<-s.Context().Done()
		return nil
	}
	var told news
	over := make(chan struct{}, 100)
	c := h.client(told.option(), func(c *Client) error {
		tell := c.outages.tell
		c.outages.tell = func(o Outage) { tell(o); over <- struct{}{} }
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var streams sync.WaitGroup
	const all = 5
	for range all {
		streams.Go(func() { _ = firstEvent(ctx, c) })
	}
	for range all {
		<-served
	}
	h.kill()
	<-over
	h.start()
	for range all { // no message comes, and yet the streams stand
		<-served
	}
	<-over
	stop()
	streams.Wait()
	told.want(t, "stopped over") // nobody left a socket behind
}

// TestInputOfAnOutageIsCountedAndArrivesOnce: bytes that were not sent, and such of which it
// is unknown, are told apart.
func TestInputOfAnOutageIsCountedAndArrivesOnce(t *testing.T) {
	e := &echoing{every: 5}
	h := serve(t, &script{attach: e.serve})
	cut := make(chan struct{})
	e.cut = func() { close(cut) } // five bytes have arrived, but no answer
	s, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE})
	if err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer s.Detach()
	reading.Go(func() {
		for _, err := range s.Items() { // a session whose output nobody reads stalls
			if err != nil {
				return
			}
		}
	})
	if _, err := s.Type([]byte("12345")); err != nil {
		t.Fatal(err)
	}
	<-cut
	h.kill()
	if _, err := s.Type([]byte("away\n")); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Input(), (InputState{Written: 10, Sent: 5}); got != want {
		t.Errorf("in the outage the input is %+v, want %+v", got, want)
	}
	e.mu.Lock()
	e.every = 0
	e.mu.Unlock()
	h.start()
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Input(), (InputState{Written: 10, Sent: 10, Acknowledged: 10}); got != want {
		t.Errorf("after it the input is %+v, want %+v", got, want)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !bytes.Equal(e.got, []byte("12345away\n")) {
		t.Errorf("the command got %q", e.got)
	}
}

func TestInputThatAClosedCommandDidNotGetIsCounted(t *testing.T) {
	h := serve(t, &script{attach: func(s attachStream) error {
		_, _ = s.Recv()
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Attached{Attached: &agboxv1.Attached{
			Exec: &agboxv1.ExecStatus{ExecId: "e"}, Input: true}}})
		_, _ = s.Recv()
		_ = s.Send(&agboxv1.AttachExecResponse{Item: &agboxv1.AttachExecResponse_Ack{Ack: &agboxv1.InputAck{Offset: 2, Closed: true}}})
		<-s.Context().Done()
		return nil
	}})
	s, err := h.client().AttachExec(t.Context(), AttachOptions{Exec: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Detach()
	if _, err := s.Type([]byte("12345")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(s.Input()), "{5 5 2}"; got != want {
		t.Errorf("the input is %s, want %s", got, want)
	}
}
