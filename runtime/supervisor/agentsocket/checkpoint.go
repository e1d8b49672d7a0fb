package agentsocket

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
)

// stateTimeout is how long the state of a checkpoint may pause while it is sent.
const stateTimeout = 30 * time.Second

// state is the state of a checkpoint as it follows a request on its connection.
type state struct {
	server *Server
	conn   *conn
	from   *bufio.Reader
}

// Read gives each piece some time if the connection belongs to an incarnation. After an
// error it reads nothing more.
func (s *state) Read(p []byte) (n int, err error) {
	if s.conn.torn {
		return 0, io.ErrUnexpectedEOF
	}
	if err = s.server.allow(s.conn, stateTimeout); err == nil {
		n, err = s.from.Read(p)
	}
	s.conn.torn = err != nil
	return n, err
}

// save executes the request for a checkpoint, whose state follows on the connection. It
// reads the state in any case, except if that is too large or does not come: then the
// connection must end.
func (s *Server) save(c *conn, from *bufio.Reader, req request, now time.Time) (in *incarnation, err error) {
	if req.Bytes > checkpoint.MaxState {
		return nil, refused(codeLarge)
	}
	body := &state{s, c, from}
	defer func() { err = errors.Join(err, s.allow(c, 0)) }()
	if in, err = s.identify(c, req.Token); err != nil {
		return nil, errors.Join(err, discard(body, req.Bytes))
	}
	mark := journal.Mark{Kind: req.Kind, Turn: req.Turn, Step: req.Step, ResumePoint: req.ResumePoint}
	switch {
	case req.Op == journal.Turn:
		mark.Kind = journal.TurnCheckpoint
	case mark.Kind == "":
		mark.Kind = journal.StepCheckpoint
	}
	err = in.save(mark, body, int64(req.Bytes), now)
	if no := new(refusal); c.torn && errors.As(err, &no) && no.Code == codeJournal {
		err = short(req.Bytes)
	}
	return in, err
}

// short is the refusal of a request whose bytes did not all come. The connection ends.
func short(size uint64) error {
	return &refusal{codeBad, fmt.Sprintf("Fewer bytes followed the line than the %d it says: give their number as bytes, and send all of them without a pause of %v. The connection is closed.", size, stateTimeout)}
}

func discard(r io.Reader, size uint64) error {
	_, err := io.CopyN(io.Discard, r, int64(size))
	return err
}

// save receives the state of a checkpoint, writes it to a file, and appends its row to the
// journal when the file is on disk.
func (in *incarnation) save(mark journal.Mark, body io.Reader, size int64, now time.Time) error {
	sum, err := journal.Summary{}, error(refused(codeSaving))
	if in.saving.CompareAndSwap(false, true) {
		defer in.saving.Store(false)
		sum, err = in.mark(&mark)
	}
	if err != nil {
		return errors.Join(err, discard(body, uint64(size)))
	}
	head := checkpoint.Head{
		Seq: mark.Seq, ID: mark.ID, Lineage: in.agentID, Anchor: in.execID, Incarnation: in.number, WrittenAt: now.UTC(),
		Kind: mark.Kind, Turn: mark.Turn, Step: mark.Step, ResumePoint: mark.ResumePoint, Model: in.model,
		Used: sum.Used.Plus(journal.Used{
			InputTokens: in.bounds.Former.InputTokens, OutputTokens: in.outputTokens, CostMicroUSD: in.bounds.Former.CostMicroUSD,
		}),
	}
	cfg := &in.server.cfg
	var file *logs.Checkpoint
	cfg.Disk(func() { file, err = cfg.Logs.CreateCheckpoint(in.execID, cfg.Quota, cfg.Owner) })
	if err != nil {
		return errors.Join(unstored(err), discard(body, uint64(size)))
	}
	crc, written, err := checkpoint.Write(gated{file, cfg.Disk}, head, body, size)
	if err == nil {
		cfg.Disk(func() { err = file.Sync() })
	}
	if err != nil {
		cfg.Disk(func() { err = errors.Join(err, file.Discard()) })
		if errors.Is(err, checkpoint.ErrDigest) {
			return &refusal{codeBad, fmt.Sprintf("T%s. A digest has checkpoint_id, resume_point, context, intent_backlog and resolution_strategy.", err.Error()[1:])}
		}
		if errors.Is(err, checkpoint.ErrState) {
			return &refusal{codeBad, fmt.Sprintf("%v: give one of at most %d bytes after the line, and its size as bytes.", err, checkpoint.MaxState)}
		}
		return unstored(err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	named := false
	if err = refused(codeToken); !in.over {
		err = in.write(journal.Row{Op: journal.Checkpoint, Mark: head.Mark(crc, written)}, now, func() error {
			named = true
			return file.Commit(head.Seq)
		})
	}
	if !named {
		cfg.Disk(func() { _ = file.Discard() })
	}
	return err
}

// summary is what its rows come to.
func (in *incarnation) summary() journal.Summary {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.sum
}

// mark numbers and names a checkpoint, and checks what the program says about it. It returns
// what the rows before it come to.
func (in *incarnation) mark(m *journal.Mark) (journal.Summary, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.over {
		return in.sum, refused(codeToken)
	}
	newest := in.sum.Checkpoints.Newest()
	m.Seq, m.ID = max(newest.Seq, in.before)+1, rand.Text()
	if err := m.Check(); err != nil {
		return in.sum, &refusal{codeReport, err.Error()}
	}
	return in.sum, nil
}

// gated writes when there is room for the disk.
type gated struct {
	to   io.Writer
	disk func(fn func())
}

func (g gated) Write(p []byte) (n int, err error) {
	g.disk(func() { n, err = g.to.Write(p) })
	return n, err
}

// workName is the folder with the work of the running incarnations, by exec id.
const workName = "work"

// hydrateName is the folder in which the daemon places the checkpoints and journals that
// incarnations begin with, by exec id.
const hydrateName = "hydrate"

// placeWork writes the work of an incarnation into a file that every user of the sandbox
// may read, and returns its path. Without work the path is empty.
func (s *Server) placeWork(b Boot) (string, error) {
	if b.Work == nil {
		return "", nil
	}
	path := s.workPath(b.ExecID)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(path, b.Work, 0o644); err != nil { //nolint:gosec // see above
		return "", err
	}
	return path, nil
}

// removeWork removes what placeWork has written, and what the daemon has placed.
func (s *Server) removeWork(execID string) {
	_ = os.Remove(s.workPath(execID)) // in memory, and usually not there
	_ = os.RemoveAll(filepath.Join(s.cfg.Dir, hydrateName, execID))
}

func (s *Server) workPath(execID string) string {
	return filepath.Join(s.cfg.Dir, workName, execID)
}
