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
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/runtime/supervisor/probes"
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

// Config configures a Server.
type Config struct {
	// Dir is the folder of the socket. It is made if it does not exist.
	Dir string
	// Helper is the program that is in the PATH of incarnations as agbox-agent.
	Helper string
	// Logs is where the journals are, which belong to Owner and count towards Quota.
	Logs  *logs.Dir
	Owner logs.Owner
	Quota *logs.Quota
	// KillCall kills the processes of a tool: those that have the mark of the call in their
	// environment, and what they have started. It may be nil.
	KillCall func(mark string)
	// Disk runs fn when there is room. It bounds the threads that wait for the disk.
	Disk func(fn func())
	// As has files looked at with the rights of the user of an incarnation.
	As As
	// Caller returns the exec of the process that has made a connection, or "" if it is of
	// none. If known is false, nobody can tell, and the token alone decides. Nil never tells.
	Caller func(c *net.UnixConn) (execID string, known bool)
	// Look returns what the processes of an exec do.
	Look func(execID string) Activity
}

// Server takes the reports of all incarnations of a sandbox. It listens from the first
// incarnation on, so that other sandboxes pay nothing for it.
type Server struct {
	cfg Config
	// work counts the goroutines of the listener and its connections.
	work sync.WaitGroup

	// starting makes callers of Begin wait until the socket is there.
	// Held across I/O: an incarnation must not start before it can connect.
	starting sync.Mutex

	// closing is closed when the server is.
	closing chan struct{}
	// burstGap is the constant of that name, but in tests.
	burstGap time.Duration

	// mu guards the fields below, and incarnation.pulse.
	// Held across I/O: the deadlines and ends of connections, neither of which waits. Both
	// must follow the order in which connections change their owner.
	mu        sync.Mutex
	listener  *net.UnixListener
	closed    bool
	byToken   map[string]*incarnation
	byExec    map[string]string // the tokens
	conns     conns
	followers map[*follower]struct{}
}

// New makes a Server. It does not listen yet.
func New(cfg Config) *Server {
	return &Server{
		cfg: cfg, closing: make(chan struct{}), burstGap: burstGap,
		byToken: make(map[string]*incarnation), byExec: make(map[string]string), conns: conns{owned: make(map[*incarnation][]*conn)},
		followers: make(map[*follower]struct{}),
	}
}

// Access is what the program of an incarnation needs to report.
type Access struct {
	socket, token, bin string
	// work is empty if the agent has none.
	work string
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

// Boot says whose incarnation an exec is.
type Boot struct {
	ExecID, AgentID string
	// Number is that of the incarnation, from 1.
	Number    uint32
	Bounds    Bounds
	Heartbeat Heartbeat
	// Phase is the one in which the incarnation begins; empty means EXECUTING.
	Phase string
	// Work is what the agent has to do, or nil.
	Work []byte
	// Calls are how long calls may take.
	Calls probes.Limits
	// Observation is that which the program must take before it reports that it is ready. 0
	// if there is none.
	Observation uint64
	// Hostname is what the program has in HOSTNAME.
	Hostname string
	// User is the one of its program, as in StartRequest.
	User string
	// Files are those of what the agent holds or asks for.
	Files []string
	// Checkpoint is the number of the agent's newest checkpoint.
	Checkpoint uint64
	// Model is the one that the agent was given. OutputTokens are those of earlier
	// incarnations.
	Model        string
	OutputTokens uint64
	// JournalBytes is how large its journal may become. 0 means journal.MaxJournal.
	JournalBytes uint64
	// Redactor takes the values of secret variables out of what it says; nil takes nothing.
	Redactor *logs.Redactor
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

// incarnation is a running incarnation.
type incarnation struct {
	server          *Server
	execID, agentID string
	user, hostname  string
	number          uint32
	bounds          Bounds
	journalMax      int64  // bytes
	observation     uint64 // Boot.Observation
	redactor        *logs.Redactor
	calls           openCalls
	results         results

	// mu guards the fields below.
	// Held across I/O: each row is written after the rows that it follows, and end must
	// wait for a row that is being written.
	mu      sync.Mutex
	sum     journal.Summary
	context gate.Context
	file    *logs.Journal // nil before the first row
	over    bool
	armed   bool // a beat is in the journal
	watched watched
	// phased means that the program has to do with phases: it has reported one, or asked for
	// what depends on them.
	phased bool
	beats  *logs.Beat // nil before the first
	kept   time.Time  // of the beat on disk

	checkpoints
	heartbeat Heartbeat
	// done is closed at the end, draining when a drain begins.
	done, draining chan struct{}

	// The fields below are guarded by Server.mu.

	pulse pulse
	// alarm measures the silence; nil before it counts. probing means that there is a
	// goroutine of probe.
	alarm   *time.Timer
	probing bool
	// abort is when it must abort its calls, if it is drained, else zero.
	abort time.Time
	pause pause
	requests
}

// report checks a row and appends it to the journal. The error is a *refusal.
func (in *incarnation) report(r journal.Row, now time.Time) (journal.Summary, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.over {
		return in.sum, refused(codeToken)
	}
	if r.Op == journal.Beat {
		in.server.beaten(in, now)
		in.keepBeat(now)
		if in.armed {
			in.keepTotals(r, now)
			return in.sum, nil
		}
	}
	if r.Op == journal.Step && r.Steps == 0 {
		r.Steps = in.sum.Steps + 1
	}
	if r.Op == journal.State && in.unobserved(r.State) {
		return in.sum, refused(codeObservation)
	}
	context, no, write := in.decide(&r)
	if write {
		if err := in.write(r, now, nil); err != nil {
			return in.sum, err
		}
		in.context = context
	}
	if no != nil {
		return in.sum, no
	}
	return in.sum, nil
}

// keepTotals writes down the totals of a beat that differ from those before. A beat counts also
// if that fails, for example because the journal is full. mu is held.
func (in *incarnation) keepTotals(beat journal.Row, now time.Time) {
	if t := beat.Totals; t != nil && in.sum.Totals.Then(*t) != in.sum.Totals {
		_ = in.write(beat, now, nil)
	}
}

// write appends a row that may follow the rows before it, after first if that is not nil. mu
// is held.
func (in *incarnation) write(r journal.Row, now time.Time, first func() error) error {
	r.At = now.UnixMilli()
	if in.redactor != nil && r.Op != journal.Send { // a message arrives as it was sent
		for _, text := range []*string{&r.Text, &r.Stack, &r.Reason} {
			*text = string(in.redactor.Replace([]byte(*text)))
		}
	}
	next, err := in.sum.Next(r)
	if err != nil {
		return &refusal{codeReport, err.Error()}
	}
	line, err := journal.Encode(r)
	if err != nil {
		return &refusal{codeReport, err.Error()}
	}
	durable := slices.Contains(durable[:], r.Op) || r.Refused
	in.server.cfg.Disk(func() {
		if first != nil {
			err = first()
		}
		if err == nil {
			err = in.append(line, durable)
		}
	})
	if err != nil {
		return unstored(err)
	}
	if r.Op == journal.Beat {
		in.armed = true
	}
	in.sum = next
	in.server.changed(in, func(p *pulse) {
		p.rows, p.lifecycle, p.changes = next.Rows, next.Lifecycle, p.changes+1
		p.save = p.save && r.Op != journal.Checkpoint
	})
	return nil
}

// durable has the reports that are on disk before they are answered.
var durable = [...]string{journal.Usage, journal.Done, journal.Phase, journal.Checkpoint, journal.Send, journal.Observed, journal.Error}

// append writes a row. mu is held.
func (in *incarnation) append(line []byte, durable bool) (err error) {
	if in.file == nil {
		cfg := &in.server.cfg
		if in.file, err = cfg.Logs.CreateJournal(in.execID, cmp.Or(in.journalMax, journal.MaxJournal), cfg.Quota, cfg.Owner); err != nil {
			return err
		}
	}
	return in.file.Append(line, durable)
}

// end refuses further rows.
func (in *incarnation) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.over = true
	if in.file != nil {
		in.server.cfg.Disk(func() { _ = in.file.Close() }) // what must last was synced
	}
	if in.beats != nil {
		in.server.cfg.Disk(func() { _ = in.beats.Close() })
	}
}
