package agentsocket

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
)

// daemon follows a server and answers its requests.
type daemon struct {
	t    *testing.T
	news chan News
	stop context.CancelFunc
	done chan error
}

func follow(t *testing.T, s *Server) *daemon {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	d := &daemon{t, make(chan News, 1000), stop, make(chan error, 1)}
	go func() { d.done <- s.Follow(ctx, func(n News) error { d.news <- n; return nil }) }()
	t.Cleanup(d.end)
	return d
}

func (d *daemon) end() {
	d.stop()
	err := <-d.done
	d.done <- err
}

// told waits for so many requests.
func (d *daemon) told(count int) (all []Request) {
	d.t.Helper()
	for len(all) < count {
		all = append(all, (<-d.news).Requests...)
	}
	return all
}

// toldOf waits for the request with that number.
func (d *daemon) toldOf(number uint64) {
	d.t.Helper()
	for d.told(1)[0].Number != number {
	}
}

// open waits until the open requests are those.
func (d *daemon) open(numbers ...uint64) {
	for n := range d.news {
		if slices.Equal(n.Open, numbers) {
			return
		}
	}
}

func (p *peer) send(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

func TestARequestIsToldToEachLinkUntilItIsAnswered(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	p.send(`{"op":"children","id":7,"token":%q,"html":"<&>","n":18446744073709551615}`, a.token)
	first := follow(t, s)
	want := `{"html":"<&>","n":18446744073709551615}`
	if r := first.told(1)[0]; r.Number != 1 || r.Op != "children" || string(r.Body) != want {
		t.Errorf("told: %d %s %s; want the body %s", r.Number, r.Op, r.Body, want)
	}
	first.end()
	second := follow(t, s)
	if r := second.told(1)[0]; r.Number != 1 {
		t.Errorf("the next link is told of request %d", r.Number)
	}
	if s.Answer("e", 2, Decision{}) || s.Answer("f", 1, Decision{}) {
		t.Error("a request that does not exist is answered")
	}
	if !s.Answer("e", 1, Decision{Result: json.RawMessage(`{"agent_id":"c"}`)}) {
		t.Error("nobody waits for the answer")
	}
	if r := p.answer(); !r.OK || r.ID != 7.0 || r.Result.AgentID != "c" {
		t.Errorf("the answer is %+v", r)
	}
	second.open()
	if s.Answer("e", 1, Decision{}) {
		t.Error("it is answered again")
	}
	if r := p.ask(`{"op":"hello","token":%q}`, a.token); !r.OK {
		t.Errorf("the connection goes on with %+v", r)
	}
	p.send(`{"op":"kill","token":%q}`, a.token)
	second.told(1)
	s.Answer("e", 2, Decision{Code: "AGENT_NOT_FOUND", Message: "There is none."})
	if r := p.answer(); r.OK || r.Error.Code != "AGENT_NOT_FOUND" || r.Error.Message != "There is none." {
		t.Errorf("the refusal is %+v", r)
	}
}

func TestARequestEndsWithItsConnectionItsTimeAndItsIncarnation(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	d := follow(t, s)
	gone := dial(t, a)
	gone.send(`{"op":"wait","token":%q}`, a.token)
	d.told(1)
	_ = gone.Close()
	d.open()
	late := dial(t, a)
	if r := late.ask(`{"op":"wait","timeout_ms":1,"token":%q}`, a.token); r.Error.Code != codeLate {
		t.Errorf("after its time: %+v", r)
	}
	half := dial(t, a)
	half.send(`{"op":"children","token":%q}`, a.token)
	if err := half.Conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	d.toldOf(3) // of the second, which was over in a moment, it may not have been told
	s.Answer("e", 3, Decision{Result: json.RawMessage(`{}`)})
	if r := half.answer(); !r.OK {
		t.Errorf("a program that sends nothing more gets %+v", r)
	}
	last := dial(t, a)
	last.send(`{"op":"wait","token":%q}`, a.token)
	d.told(1)
	s.End("e")
	if r := last.answer(); r.Error.Code != codeToken {
		t.Errorf("after the end: %+v", r)
	}
	if r := last.ask(`{"op":"wait","token":%q}`, a.token); r.Error.Code != codeToken {
		t.Errorf("with the token of a former incarnation: %+v", r)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	if r := p.ask(`{"op":"spawn","token":%q,"x":%q}`, a.token, strings.Repeat("x", maxAsked)); r.Error.Code != codeBig {
		t.Errorf("a large one: %+v", r)
	}
	in := s.byToken[a.token]
	for range maxOpen {
		if _, err := s.open(in, "wait", make([]byte, maxAsked/3)); err != nil {
			t.Fatal(err)
		}
	}
	if r := p.ask(`{"op":"wait","token":%q}`, a.token); r.Error.Code != codeMany {
		t.Errorf("one more: %+v", r)
	}
	d := follow(t, s)
	for told := 0; told < maxOpen; {
		n := <-d.news
		size := 0
		for _, r := range n.Requests {
			size += len(r.Body)
		}
		if size > maxAsked || len(n.Open) != maxOpen {
			t.Errorf("%d bytes are told together, %d are open", size, len(n.Open))
		}
		told += len(n.Requests)
	}
}

// TestRequestsOfAConnectionAreAnsweredInTheirOrder is of a program that does not wait for the answers.
func TestRequestsOfAConnectionAreAnsweredInTheirOrder(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	d := follow(t, s)
	p := dial(t, a)
	p.in = bufio.NewReader(p)
	p.send(`{"op":"children","id":1,"token":%q}`+"\n"+`{"op":"hello","id":2,"token":%q}`, a.token, a.token)
	d.told(1)
	s.Answer("e", 1, Decision{Result: json.RawMessage(`{}`)})
	for _, id := range []any{1.0, 2.0} {
		if r := p.answer(); !r.OK || r.ID != id {
			t.Errorf("the answer is %+v, want that to %v", r, id)
		}
	}
}

func TestTheFirstRequestIsInTheJournal(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	d := follow(t, s)
	p := dial(t, a)
	for range 2 {
		go func() {
			r := d.told(1)[0]
			s.Answer("e", r.Number, Decision{Result: json.RawMessage(`{}`)})
		}()
		if r := p.ask(`{"op":"children","token":%q}`, a.token); !r.OK {
			t.Errorf("%+v", r)
		}
	}
	if got := summary(t, dir, "e"); got.Rows != 1 || !got.OnlyAsked() || !got.Spoke() {
		t.Errorf("the journal has %+v", got)
	}
}
