package agentsocket

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"
)

// owned returns n connections that belong to the incarnation.
func owned(t *testing.T, a *Access, n int) (all []*peer) {
	t.Helper()
	for range n {
		p := dial(t, a)
		if r := p.ask(`{"op":"hello","token":%q}`, a.token); !r.OK {
			t.Fatalf("connection %d: %+v", len(all)+1, r)
		}
		all = append(all, p)
	}
	return all
}

// ended waits until the server has closed the connection.
func (p *peer) ended() {
	p.t.Helper()
	_, err := p.in.ReadByte()
	if !errors.Is(err, io.EOF) && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		p.t.Fatalf("the connection is still open: %v", err)
	}
}

func TestAnIncarnationCannotTakeTheConnectionsOfOthers(t *testing.T) {
	s, _ := server(t)
	greedy, other := begin(t, s, "greedy"), begin(t, s, "other")
	all := owned(t, greedy, maxOwned)
	more := dial(t, greedy)
	if r := more.ask(`{"op":"hello","token":%q}`, greedy.token); r.Error.Code != codeBusy {
		t.Errorf("one connection more: %+v", r)
	}
	more.ended()
	owned(t, other, maxOwned)
	_ = all[0].Close()
	for { // the server notices the end a moment later
		if r := dial(t, greedy).ask(`{"op":"hello","token":%q}`, greedy.token); r.OK {
			break
		}
	}
}

// TestARequestThatIsHeldBackEndsWithItsConnection: else those of a program that has long gone on
// count among its connections.
func TestARequestThatIsHeldBackEndsWithItsConnection(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	free := time.Now().Add(time.Hour)
	held := &s.byToken[a.token].requests.pace
	s.mu.Lock()
	held.due = free
	s.mu.Unlock()
	for n := range maxOwned {
		p := dial(t, a)
		p.send(`{"op":"children","token":%q}`, a.token)
		for due := free; due.Sub(free) <= time.Duration(n)*requestEvery; { // until it is held back
			s.mu.Lock()
			due = held.due
			s.mu.Unlock()
		}
		_ = p.Close()
	}
	for tries := 0; ; tries++ { // the server notices the ends a moment later
		r := dial(t, a).ask(`{"op":"hello","token":%q}`, a.token)
		if r.OK {
			break
		}
		if tries == 1000 {
			t.Fatalf("after %d hang-ups: %+v", maxOwned, r)
		}
	}
}

func TestConnectionsThatSendNothingKeepNobodyOut(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	kept := owned(t, a, 1)[0]
	var silent []*peer
	for range 2 * maxFresh {
		silent = append(silent, dial(t, a))
	}
	owned(t, a, 3)
	silent[0].ended()
	if r := kept.ask(`{"op":"hello","token":%q}`, a.token); !r.OK {
		t.Errorf("a connection of the incarnation: %+v", r)
	}
}

// TestAnEndedIncarnationKeepsNoConnections: a process that it left behind may have them.
func TestAnEndedIncarnationKeepsNoConnections(t *testing.T) {
	s, _ := server(t)
	var left [][]*peer
	for i := range 2 + maxFresh/maxOwned {
		exec := fmt.Sprint("e-", i)
		left = append(left, owned(t, begin(t, s, exec), maxOwned))
		s.End(exec)
	}
	for _, p := range left[0] {
		p.ended()
	}
	p := left[len(left)-1][0]
	if r := p.ask(`{"op":"hello","token":"old"}`); r.Error.Code != codeToken {
		t.Errorf("a report after the end: %+v", r)
	}
}

func TestAConnectionWaitsForRequestsAfterABurst(t *testing.T) {
	s, _ := server(t)
	s.burstGap = time.Nanosecond
	a := begin(t, s, "e")
	p := dial(t, a)
	hello := fmt.Sprintf(`{"op":"hello","token":%q}`+"\n", a.token)
	for i := range 50 {
		// The burst has two requests and the beginning of a third one.
		if _, err := io.WriteString(p, hello+hello+hello[:9]); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if r := p.answer(); !r.OK {
				t.Fatalf("burst %d: %+v", i, r)
			}
		}
		if r := p.ask("%s", hello[9:len(hello)-1]); !r.OK {
			t.Fatalf("the rest of a request: %+v", r)
		}
	}
}

func TestRequestsAreHeldBackAfterABurst(t *testing.T) {
	var p pace
	now := time.Now()
	for n := range requestBurst {
		if wait := p.take(now); wait != 0 {
			t.Fatalf("request %d waits %v", n, wait)
		}
	}
	for n := range 10 {
		if wait, want := p.take(now), time.Duration(n+1)*requestEvery; wait != want {
			t.Errorf("%d after the burst: %v; want %v", n, wait, want)
		}
	}
	if wait := p.take(now.Add(11 * requestEvery)); wait != 0 {
		t.Errorf("at the pace: %v", wait)
	}
	if wait := p.take(now.Add(time.Hour)); wait != 0 {
		t.Errorf("after a rest: %v", wait)
	}
}

func FuzzBodyOf(f *testing.F) {
	f.Add([]byte(`{"op":"spawn","id":1,"token":"t","command":["x"],"timeout_ms":5}`))
	f.Add([]byte(`{"op":"recv","Token":"x","after":18446744073709551615,"\u0000":null}`))
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		body, err := bodyOf(line)
		if err != nil {
			return
		}
		if len(body) > maxAsked {
			t.Fatalf("%d bytes are told", len(body))
		}
		if again, err := bodyOf(body); err != nil || string(again) != string(body) {
			t.Fatalf("%s became %s, then %s, %v", line, body, again, err)
		}
	})
}
