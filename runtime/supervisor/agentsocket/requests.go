package agentsocket

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
)

// errGone means that the program has closed its connection.
var errGone = errors.New("the connection was closed")

// ask hands a request to the daemon and waits for its answer. The error is a *refusal or
// errGone.
func (s *Server) ask(c *conn, in *incarnation, rest *bufio.Reader, req request, line []byte) (json.RawMessage, error) {
	body, err := bodyOf(line)
	if err != nil {
		return nil, err
	}
	gone, stop := s.watchGone(c, rest)
	defer stop()
	if err := s.holdBack(in, gone); err != nil {
		return nil, err
	}
	in.asks()
	in.picture(req.Op, body)
	o, err := s.open(in, req.Op, body)
	if err != nil {
		return nil, err
	}
	defer s.withdraw(in, o)
	var late <-chan time.Time
	if req.TimeoutMs > 0 {
		timer := time.NewTimer(time.Duration(min(req.TimeoutMs, uint64(maxTimeout/time.Millisecond))) * time.Millisecond)
		defer timer.Stop()
		late = timer.C
	}
	var drained <-chan struct{}
	if gate.Waits(req.Op) {
		drained = in.draining
	}
	select {
	case d := <-o.answer:
		if d.Code != "" {
			return nil, &refusal{d.Code, d.Message}
		}
		in.align(d.Result)
		return d.Result, nil
	case <-drained:
		return nil, &refusal{codeDraining, "This incarnation is drained: save the work and exit."}
	case <-late:
		return nil, refused(codeLate)
	case <-in.done:
		return nil, refused(codeToken)
	case <-gone:
	case <-s.closing:
	}
	return nil, errGone
}

// asks writes down the first request of a program that has reported nothing: its exit code 0 is
// then no success. Without a row the request is answered all the same.
func (in *incarnation) asks() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.over && in.sum.Rows == 0 {
		_ = in.write(journal.Row{Op: journal.Asked}, time.Now(), nil)
	}
}

// holdBack waits as long as a request must because of those before it, unless its program has
// gone: a connection that nobody has must not count among those of the incarnation.
func (s *Server) holdBack(in *incarnation, gone <-chan struct{}) error {
	s.mu.Lock()
	wait := in.requests.pace.take(time.Now())
	s.mu.Unlock()
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-in.done:
		return refused(codeToken)
	case <-gone:
	case <-s.closing:
	}
	return errGone
}

// maxTimeout bounds the time that a request gives.
const maxTimeout = 365 * 24 * time.Hour

// bodyOf returns the fields of a request that are for the daemon.
func bodyOf(line []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return nil, err
	}
	for _, ours := range [...]string{"op", "id", "token", "timeout_ms"} {
		delete(fields, ours)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(fields); err != nil {
		return nil, err
	}
	body := bytes.TrimSuffix(out.Bytes(), []byte("\n"))
	if len(body) > maxAsked {
		return nil, refused(codeBig)
	}
	return body, nil
}

// open adds a request to those that the daemon is told of.
func (s *Server) open(in *incarnation, op string, body []byte) (*openRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case in.pulse.ended:
		return nil, refused(codeToken)
	case len(in.requests.open) >= maxOpen:
		return nil, refused(codeMany)
	}
	in.asked++
	o := &openRequest{Request{in.asked, op, body}, make(chan Decision, 1)}
	in.requests.open = append(in.requests.open, o)
	in.pulse.changes++
	for f := range s.followers {
		signal(f.changed)
		signal(f.asked)
	}
	return o, nil
}

// withdraw forgets a request that was answered, or for whose answer nobody waits.
func (s *Server) withdraw(in *incarnation, o *openRequest) {
	s.changed(in, func(p *pulse) {
		p.changes++
		in.requests.open = slices.DeleteFunc(in.requests.open, func(other *openRequest) bool { return other == o })
	})
}

// Answer answers a request. It returns false if nobody waits for the answer any more. What
// the answer says about a pause holds when Answer returns: a pause that is told later is
// another one, also if the program gets the answer after it.
func (s *Server) Answer(execID string, number uint64, d Decision) bool {
	observation, phase := observed(d.Result)
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.byToken[s.byExec[execID]]
	if in == nil {
		return false
	}
	for _, o := range in.requests.open {
		if o.Number == number {
			select {
			case o.answer <- d:
				in.takeLocked(observation, phase)
				in.pause.lost = in.pause.lost || o.Op == "acquire" && phase == statePaused && observation == 0
			default: // it was answered a moment ago
			}
			return true
		}
	}
	return false
}

// watchGone returns a channel that is closed when the program has closed its connection.
// stop must be called before the connection is read again.
func (s *Server) watchGone(c *conn, rest *bufio.Reader) (gone <-chan struct{}, stop func()) {
	closed, over, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.work.Go(func() {
		defer close(stopped)
		if _, err := rest.Peek(1); err == nil {
			return // there is a further request, which is read after the answer
		}
		for !c.hungUp() {
			timer := time.NewTimer(goneEvery)
			select {
			case <-over:
				timer.Stop()
				return
			case <-timer.C:
			}
		}
		close(closed)
	})
	return closed, func() {
		close(over)
		_ = c.SetReadDeadline(time.Now())
		<-stopped
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.owner != nil {
			_ = c.SetReadDeadline(time.Time{})
		} else {
			_ = c.SetReadDeadline(time.Now().Add(firstRequest))
		}
	}
}

// hungUp reports whether the other end has closed the connection, and not only for writing.
func (c *conn) hungUp() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	hup := false
	err = raw.Control(func(fd uintptr) {
		look := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(look, 0)
		hup = err == nil && n > 0 && look[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return hup || err != nil
}

// picture writes to the journal how the files of the agent are, before a request that may
// pause it: what changes from then on, its program has not done.
func (in *incarnation) picture(op string, body []byte) {
	if op != "acquire" && op != "pause" {
		return
	}
	in.mu.Lock()
	if op == "acquire" {
		in.watched = in.watched.add(body)
	}
	paths := slices.Clone(in.watched)
	in.mu.Unlock()
	seen := Look(in.server.cfg.As, in.user, paths)
	_, _ = in.report(journal.Row{Op: journal.Picture, Seen: &seen}, time.Now()) // without it, the files count as not known
}
