// Package agentsocket takes the reports of agents in a sandbox. It listens on the agent socket,
// checks each report and appends it to the journal of the incarnation, in a file that the
// daemon reads. So what was acknowledged outlasts the program, the container and the
// daemon.
//
// A request is a JSON object on a line of its own, and so is its answer. Who reports is
// known by the process that has made the connection: it belongs to the exec of an
// incarnation. The token, which is made for each incarnation, only confirms that, because
// processes of the same user can read it.
//
// Checkpoints are on disk before they are answered, and so are rows of usage, phases, sent
// messages, taken observations, the outcome and a call that the budget does not admit. The
// last report is accepted before the daemon is told that the exec has ended.
package agentsocket

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
)

// Names in the folder of the socket, and in the environment of an incarnation.
const (
	socketName = "agent.sock"
	binName    = "bin"
	helperName = "agbox-agent"

	// ownPrefix begins the names of the variables that agbox sets.
	ownPrefix      = "AGBOX_"
	socketVariable = "AGBOX_AGENT_SOCKET"
	tokenVariable  = "AGBOX_TOKEN"
	workVariable   = "AGBOX_WORK"
)

// New makes a Server. It does not listen yet.
func New(cfg Config) *Server {
	return &Server{
		cfg: cfg, closing: make(chan struct{}), burstGap: burstGap,
		byToken: make(map[string]*incarnation), byExec: make(map[string]string), conns: conns{owned: make(map[*incarnation][]*conn)},
		followers: make(map[*follower]struct{}),
	}
}

// Inherit returns what an incarnation gets of the environment of the container. Without the
// variables that agbox sets: the program would take AGBOX_CHECKPOINT for one of agbox.
func (a *Access) Inherit(env []string) []string {
	if a == nil {
		return env
	}
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, ownPrefix) })
}

// Extend returns the environment with the access, which overrides what is there. A nil
// Access adds nothing.
func (a *Access) Extend(env []string) []string {
	if a == nil {
		return env
	}
	extended := make([]string, 0, len(env)+2)
	for _, entry := range env {
		switch key, value, _ := strings.Cut(entry, "="); key {
		case socketVariable, tokenVariable, workVariable:
		case "PATH":
			extended = append(extended, key+"="+value+string(filepath.ListSeparator)+a.bin)
		default:
			extended = append(extended, entry)
		}
	}
	if a.work != "" {
		extended = append(extended, workVariable+"="+a.work)
	}
	return append(extended, socketVariable+"="+a.socket, tokenVariable+"="+a.token)
}

// Begin admits an incarnation of an agent. End must be called when it has ended.
func (s *Server) Begin(b Boot) (*Access, error) {
	if err := s.listen(); err != nil {
		return nil, err
	}
	in := &incarnation{server: s, execID: b.ExecID, agentID: b.AgentID, user: b.User, number: b.Number, bounds: b.Bounds, observation: b.Observation, watched: b.Files[:min(len(b.Files), maxWatched)], sum: journal.Start()}
	in.journalMax, in.hostname, in.redactor = int64(b.JournalBytes), b.Hostname, b.Redactor
	in.heartbeat, in.done = b.Heartbeat, make(chan struct{})
	in.draining = make(chan struct{})
	in.sum.Phase = cmp.Or(b.Phase, in.sum.Phase)
	in.checkpoints = checkpoints{before: b.Checkpoint, model: b.Model, outputTokens: b.OutputTokens}
	in.pulse = pulse{begun: time.Now(), lifecycle: in.sum.Lifecycle}
	in.calls.limits = b.Calls
	work, err := s.placeWork(b)
	if err != nil {
		return nil, err
	}
	access := &Access{work: work, socket: filepath.Join(s.cfg.Dir, socketName), token: rand.Text(), bin: filepath.Join(s.cfg.Dir, binName)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byToken[access.token], s.byExec[b.ExecID] = in, access.token
	s.wakeLocked()
	s.measureLocked(in, in.pulse.begun)
	return access, nil
}

// End refuses further reports of an exec. When it returns, all acknowledged ones are in the
// journal. An exec that is no incarnation is ignored.
func (s *Server) End(execID string) {
	s.mu.Lock()
	token, ok := s.byExec[execID]
	in := s.byToken[token]
	delete(s.byExec, execID)
	delete(s.byToken, token)
	s.disownLocked(in)
	if ok {
		in.pulse.ended = true
		s.measureLocked(in, time.Now()) // stops the timer
	}
	s.mu.Unlock()
	if ok {
		close(in.done)
		for _, mark := range in.calls.close() {
			if s.cfg.KillCall != nil {
				s.cfg.KillCall(mark)
			}
		}
		in.results.close()
		in.end()
		s.removeWork(execID)
	}
}

// listen makes the folder with the socket and the link to the helper, once.
func (s *Server) listen() error {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.listening() {
		return nil
	}
	bin := filepath.Join(s.cfg.Dir, binName)
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(s.cfg.Helper, filepath.Join(bin, helperName)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	path := filepath.Join(s.cfg.Dir, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	// Every user of the sandbox may connect; their processes say who reports.
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // see above
		return errors.Join(err, l.Close())
	}
	if !s.serveFrom(l) {
		return errors.Join(net.ErrClosed, l.Close())
	}
	return nil
}

// serveFrom begins to accept connections. It returns false if the server is closed.
func (s *Server) serveFrom(l *net.UnixListener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.listener = l
	s.work.Go(func() { s.accept(l) })
	return true
}

func (s *Server) listening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener != nil
}

// Close ends the server and waits for all its goroutines. It ends Follow, but does not wait
// for it.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		close(s.closing)
	}
	s.closed = true // nothing is added from now on
	listener, open := s.listener, s.openLocked()
	s.mu.Unlock()
	if listener != nil {
		_ = listener.Close()
	}
	for _, c := range open {
		_ = c.Close()
	}
	s.work.Wait()
}

// handle executes the request of a line. rest is what follows the line. It returns the id
// of the request, accepted or a *refusal, and what the incarnation has to be told besides.
func (s *Server) handle(c *conn, line []byte, rest *bufio.Reader, now time.Time) (id json.RawMessage, reply any, also orders) {
	req, row, err := parse(line)
	if err == nil {
		var in *incarnation
		switch {
		case req.Op == journal.Checkpoint || req.Op == journal.Turn && req.Bytes > 0:
			in, err = s.save(c, rest, req, now)
		case req.Op == journal.Call && req.Bytes > 0:
			in, err = s.receive(c, rest, &req)
		default:
			in, err = s.identify(c, req.Token)
		}
		switch {
		case err != nil:
		case gate.ByDaemon(req.Op):
			if no := in.mayAct(req.Op, "", now); no != nil {
				err = no
			} else {
				reply, err = s.ask(c, in, rest, req, line)
			}
		default:
			reply, err = in.do(req, row, now)
		}
		if in != nil {
			also = s.orders(in, time.Now())
		}
	}
	if err != nil {
		no := &refusal{codeBad, err.Error()}
		_ = errors.As(err, &no)
		return req.ID, no, also
	}
	return req.ID, reply, also
}

// do executes a request of the incarnation.
func (in *incarnation) do(req request, row journal.Row, now time.Time) (reply any, err error) {
	switch req.Op {
	case opDrained:
		return accepted{AgentID: in.agentID, Incarnation: in.number}, nil
	case opHealth:
		return in.health(now), nil
	case journal.Call:
		return in.call(req, now)
	case journal.Checkpoint:
		return answerOf(in, in.summary()), nil // it was saved
	case journal.Beat:
		if err := in.believe(req, now); err != nil {
			return nil, err
		}
	}
	act := row.Op
	if act == journal.Gate {
		act = row.Kind
	}
	if no := in.mayAct(act, row.Name, now); no != nil && (act == row.Op || gate.HasVerdict(act)) {
		return nil, no
	}
	sum, err := in.report(row, now)
	if err != nil {
		return nil, err
	}
	if row.Op == journal.Phase {
		in.knowsPhases()
	}
	if req.Op == journal.Beat && req.Metrics != nil {
		in.felt(*req.Metrics)
	}
	yes := answerOf(in, sum)
	yes.tellContext(req.Op, sum, in.bounds.Context)
	if req.Op == journal.Turn {
		yes.Stored = new(uint64)
		if req.Bytes > 0 { // it was saved before
			*yes.Stored = sum.Checkpoints.Newest().Seq
		}
	}
	return yes, nil
}

func answerOf(in *incarnation, sum journal.Summary) accepted {
	reply := accepted{
		AgentID: in.agentID, Incarnation: in.number, State: sum.Lifecycle, Phase: sum.Phase,
		Used: sum.Used, Steps: sum.Steps, Outcome: sum.Outcome,
	}
	if sum.Checkpoints.Newest().Seq > 0 {
		newest := sum.Checkpoints.Newest() // only here, because it escapes to the heap
		reply.Checkpoint = &newest
	}
	return reply
}

// accept serves the connections until the listener is closed.
func (s *Server) accept(l *net.UnixListener) {
	for {
		raw, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: a connection that ends frees one
			time.Sleep(100 * time.Millisecond)
			continue
		}
		c := &conn{UnixConn: raw}
		if !s.add(c) {
			_ = c.Close()
			continue
		}
		s.work.Go(func() {
			defer s.remove(c)
			// A fault in here must not end the supervisor, and all commands with it.
			defer func() { _ = recover() }()
			s.serve(c)
		})
	}
}

// serve answers the requests of a connection, one after the other.
func (s *Server) serve(c *conn) {
	if c.SetReadDeadline(time.Now().Add(firstRequest)) != nil {
		return
	}
	s.callerOf(c) // now, as later the process may have ended
	in := bufio.NewReaderSize(c, usualLine)
	for more := true; more; {
		if _, err := in.Peek(1); err != nil {
			return
		}
		over := make(chan bool, 1)
		s.work.Go(func() {
			defer close(over)
			defer func() { _ = recover() }() // as in accept
			over <- s.burst(c, in)
		})
		more = <-over
	}
}

// burst answers a request, and those that follow soon. It returns false if the connection
// must end. It runs in a goroutine of its own: to decode and encode JSON takes up to 16 KB of
// stack, which a connection that waits for its next request would keep. A goroutine for each
// request would double its latency.
func (s *Server) burst(c *conn, in *bufio.Reader) (more bool) {
	for {
		line, err := readLine(in)
		if errors.Is(err, errLong) {
			_ = c.answer(nil, refused(codeLong), orders{})
		}
		if err != nil || !s.respond(c, line, in) {
			return false
		}
		if !s.soon(c, in) {
			return true
		}
	}
}

// soon reports whether a further request comes within the gap of a burst.
func (s *Server) soon(c *conn, in *bufio.Reader) bool {
	if in.Buffered() > 0 {
		return true
	}
	if s.allow(c, s.burstGap) != nil {
		return false
	}
	_, err := in.Peek(1)
	return s.allow(c, 0) == nil && err == nil
}

// respond answers a request. It returns false if it is the last one of its connection.
func (s *Server) respond(c *conn, line []byte, rest *bufio.Reader) (more bool) {
	id, reply, also := s.handle(c, line, rest, time.Now())
	if c.answer(id, reply, also) != nil {
		return false
	}
	no, ok := reply.(*refusal)
	return !c.torn && (!ok || no.Code != codeBusy && no.Code != codeLarge)
}

// errLong means that a line is longer than maxLine.
var errLong = errors.New("a line is too long")

// readLine reads a line. It uses no more memory than the line has bytes, and at most
// maxLine.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, errLong
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil // a last line without its end
		default:
			return line, err
		}
	}
}

// answer writes the answer to a request.
func (c *conn) answer(id json.RawMessage, reply any, also orders) error {
	if err := c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	return json.NewEncoder(c.UnixConn).Encode(envelope(id, reply, also))
}

// Running reports whether the exec is a running incarnation.
func (s *Server) Running(execID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.byExec[execID]
	return ok
}

// Drain begins to tell an incarnation that it is drained. plan gets the newest state that it
// has reported, and returns when it is to abort its calls. It returns false for one that has
// ended, or was told before. write appends a row about it to the journal, which may have to
// wait for the disk, and has the calls of the incarnation aborted in time.
func (s *Server) Drain(execID string, plan func(lifecycle string) (abort time.Time)) (begun bool, write func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.byToken[s.byExec[execID]]
	if in == nil || !in.abort.IsZero() {
		return false, nil
	}
	abort := plan(in.pulse.lifecycle)
	in.abort = abort
	close(in.draining)
	return true, func() {
		in.calls.drain(in, abort, time.Now())
		_, _ = in.report(journal.Row{Op: journal.Drain}, time.Now()) // without a row it is drained all the same
	}
}

// orders returns what an incarnation has to be told now.
func (s *Server) orders(in *incarnation, now time.Time) orders {
	s.mu.Lock()
	defer s.mu.Unlock()
	also := orders{Paused: in.pausedLocked(), Checkpoint: in.pulse.save}
	if in.abort.IsZero() {
		return also
	}
	left := max(0, in.abort.Sub(now).Milliseconds())
	also.Drain, also.DeadlineMs = true, &left
	return also
}
