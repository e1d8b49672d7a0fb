package agentsocket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
)

// saveState sends the state of a checkpoint.
func (p *peer) saveState(a *Access, fields, state string) reply {
	p.t.Helper()
	return p.ask(`{"op":"checkpoint","token":%q,"bytes":%d%s}`+"\n%s", a.token, len(state)+1, fields, state)
}

// saved reads the checkpoint that a mark describes.
func saved(t *testing.T, dir *logs.Dir, execID string, m journal.Mark) checkpoint.File {
	t.Helper()
	f, err := dir.OpenCheckpoint(execID, m.Seq)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var raw bytes.Buffer
	if err := checkpoint.Copy(&raw, f, &m); err != nil {
		t.Fatal(err)
	}
	file, err := checkpoint.Parse(raw.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestACheckpointIsOnDiskWhenItIsAnswered(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	if r := p.ask(`{"op":"usage","input_tokens":10,"token":%q}`, a.token); !r.OK {
		t.Fatal(r)
	}
	for n := uint64(1); n <= 8; n++ {
		state := fmt.Sprintf(`{"n": %d, "more": %q}`, n, strings.Repeat("x", int(n)<<14))
		r := p.saveState(a, fmt.Sprintf(`,"kind":"turn","turn":%d,"step":2,"resume_point":"here"`, n), state)
		if !r.OK || r.Result.Checkpoint == nil {
			t.Fatalf("checkpoint %d: %+v", n, r)
		}
		newest := summary(t, dir, "e").Checkpoints.Newest()
		if newest != *r.Result.Checkpoint || newest.Seq != n {
			t.Errorf("the journal has %+v, and the answer %+v", newest, r.Result.Checkpoint)
		}
		got := saved(t, dir, "e", newest)
		if got.Seq != n || got.ID != newest.ID || got.Lineage != "agent" || got.Anchor != "e" || got.Incarnation != 1 || got.Kind != "turn" || got.Turn != n ||
			got.Step != 2 || got.ResumePoint != "here" || got.Used.InputTokens != 10 || strings.TrimSpace(string(got.State)) != state {
			t.Errorf("checkpoint %d is %+v", n, got.Head)
		}
	}
	for _, m := range summary(t, dir, "e").Checkpoints {
		saved(t, dir, "e", m) // the newest five
	}
	if r := p.ask(`{"op":"hello","token":%q}`, a.token); !r.OK || r.Result.Checkpoint.Seq != 8 {
		t.Errorf("the request after a state: %+v", r)
	}
}

func TestCheckpointsThatAreRefusedLeaveNothing(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	for _, row := range []struct{ fields, state, code string }{
		{``, `[]`, codeBad}, {``, `{`, codeBad}, {``, ``, codeBad}, {``, `{}{}`, codeBad},
		{`,"kind":"pause"`, `{"checkpoint_id":"c","resume_point":"r","context":{},"intent_backlog":{},"resolution_strategy":"RETRY"}`, codeBad},
		{`,"kind":"nap"`, `{}`, codeReport}, {`,"resume_point":"\u001b"`, `{}`, codeReport}, {`,"turn":9007199254740993`, `{}`, codeReport},
	} {
		if r := p.saveState(a, row.fields, row.state); r.OK || r.Error.Code != row.code {
			t.Errorf("%s %s: %+v; want %s", row.fields, row.state, r, row.code)
		}
	}
	if r := p.saveState(a, `,"kind":"pause"`, `{}`); r.OK || r.Error.Message != "The state is no digest of a pause: checkpoint_id must be a string. A digest has checkpoint_id, resume_point, context, intent_backlog and resolution_strategy." {
		t.Errorf("an empty digest: %+v", r)
	}
	if r := p.ask(`{"op":"checkpoint","token":"forged","bytes":3}` + "\n{}"); r.Error.Code != codeToken {
		t.Errorf("a forged token: %+v", r)
	}
	in := s.byToken[a.token]
	in.saving.Store(true)
	if r := p.saveState(a, ``, `{}`); r.Error.Code != codeSaving {
		t.Errorf("two at a time: %+v", r)
	}
	in.saving.Store(false)
	if _, err := dir.OpenJournal("e"); !errors.Is(err, logs.ErrNotExist) {
		t.Errorf("a refused checkpoint is in the journal: %v", err)
	}
	if r := p.saveState(a, ``, `{}`); !r.OK || r.Result.Checkpoint.Seq != 1 || r.Result.Checkpoint.Kind != journal.StepCheckpoint {
		t.Errorf("after all: %+v", r)
	}
	large := dial(t, a)
	if r := large.ask(`{"op":"checkpoint","token":%q,"bytes":%d}`, a.token, checkpoint.MaxState+1); r.Error.Code != codeLarge {
		t.Errorf("over the limit: %+v", r)
	}
	if _, err := large.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection goes on: %v", err)
	}
}

func TestTheLargestCheckpointIsKept(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	state := `{"x":"` + strings.Repeat("x", checkpoint.MaxState-9) + `"}`
	if r := dial(t, a).saveState(a, ``, state); !r.OK {
		t.Fatalf("%+v", r)
	}
	if got := saved(t, dir, "e", summary(t, dir, "e").Checkpoints.Newest()); len(bytes.TrimSpace(got.State)) != len(state) {
		t.Errorf("it has a state of %d bytes", len(got.State))
	}
}

func TestACheckpointThatBreaksOffIsNoCheckpoint(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	if r := p.saveState(a, ``, `{"good":1}`); !r.OK {
		t.Fatal(r)
	}
	part := dial(t, a)
	if _, err := fmt.Fprintf(part, `{"op":"checkpoint","token":%q,"bytes":1000}`+"\n"+`{"part":1`, a.token); err != nil {
		t.Fatal(err)
	}
	_ = part.Close()
	in := s.byToken[a.token]
	for { // the server notices the end a moment later
		if r := p.saveState(a, ``, `{"good":2}`); r.OK {
			break
		} else if r.Error.Code != codeSaving {
			t.Fatalf("the next one: %+v", r)
		}
	}
	if got := summary(t, dir, "e").Checkpoints.Newest(); got.Seq != 2 || got.Seq != in.sum.Checkpoints.Newest().Seq {
		t.Errorf("the newest is %+v", got)
	}
}

// A state that stops coming ends its connection: the rest of it is no request.
func TestAStateThatDoesNotComeEndsItsConnection(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := owned(t, a, 1)[0]
	if _, err := fmt.Fprintf(p, `{"op":"checkpoint","token":%q,"bytes":1000}`+"\n{", a.token); err != nil {
		t.Fatal(err)
	}
	in := s.of("e")
	for !in.saving.Load() {
		runtime.Gosched()
	}
	for in.saving.Load() { // its time is over, also if the server has just set it
		s.mu.Lock()
		for _, c := range s.conns.owned[in] {
			_ = c.SetReadDeadline(time.Unix(1, 0))
		}
		s.mu.Unlock()
	}
	if r := p.answer(); r.Error.Code != codeBad || !strings.Contains(r.Error.Message, "Fewer bytes followed the line than the 1000 it says") {
		t.Errorf("the checkpoint: %+v", r)
	}
	p.ended()
}

func TestNoCheckpointIsAcceptedAfterTheEnd(t *testing.T) {
	s, dir := server(t)
	var asked atomic.Bool
	begun := make(chan struct{})
	made := sync.OnceFunc(func() { close(begun) })
	s.cfg.Disk = func(fn func()) {
		fn()
		if asked.Load() {
			made() // the file for the state
		}
	}
	a := begin(t, s, "e")
	p := dial(t, a)
	asked.Store(true)
	if _, err := fmt.Fprintf(p, `{"op":"checkpoint","token":%q,"bytes":3}`+"\n{", a.token); err != nil {
		t.Fatal(err)
	}
	<-begun
	s.End("e")
	if r := p.ask("}"); r.Error.Code != codeToken {
		t.Errorf("a checkpoint whose incarnation ended: %+v", r)
	}
	if _, err := dir.OpenCheckpoint("e", 1); !errors.Is(err, logs.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}

func TestWithoutRoomACheckpointIsRefused(t *testing.T) {
	s, dir := server(t)
	s.cfg.Quota = dir.NewQuota(1)
	a := begin(t, s, "e")
	p := dial(t, a)
	// The reserve for checkpoints is 32 MiB, so the third does not fit.
	state := `{"x":"` + strings.Repeat("x", 15<<20) + `"}`
	for range 2 {
		if r := p.saveState(a, ``, state); !r.OK {
			t.Fatalf("%+v", r)
		}
	}
	if r := p.saveState(a, ``, state); r.Error.Code != codeJournal {
		t.Errorf("without room: %+v", r)
	}
	if r := p.saveState(a, ``, `{}`); !r.OK || r.Result.Checkpoint.Seq != 3 {
		t.Errorf("a small one: %+v", r)
	}
	for _, m := range summary(t, dir, "e").Checkpoints {
		if m.Seq > 0 {
			saved(t, dir, "e", m)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(s.cfg.Dir, ".*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	if _, err := os.Stat(s.cfg.Dir); err != nil {
		t.Error(err)
	}
}
