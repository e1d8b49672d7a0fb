package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/logs/notify"
)

var errCallOver = errors.New("the call is over")

// fakeClient receives everything, or nothing until it is released.
type fakeClient struct {
	data  []byte
	stuck chan struct{} // nil: receives everything
}

func (c *fakeClient) sendChunk(chunk *agboxv1.LogChunk) error {
	if c.stuck != nil {
		<-c.stuck
		return errCallOver
	}
	c.data = append(c.data, chunk.GetData()...)
	return nil
}

func (c *fakeClient) sendEnd(*agboxv1.LogEnd) error { return nil }

// followed makes a log and a follower of it. The exec never ends.
func followed(t *testing.T, slow time.Duration, to outputSender) (*follower, *logs.Writer) {
	t.Helper()
	s := &execCalls{paths: paths.Install{Data: t.TempDir()}, slowReader: slow, life: newLifetime(), ledger: newTribe(t).calls.ledger}
	if err := os.MkdirAll(s.paths.SandboxLogs("a"), 0o700); err != nil {
		t.Fatal(err)
	}
	notifier := notify.New()
	t.Cleanup(func() { _ = notifier.Close() })
	s.logs = notifier
	dir, err := logs.OpenDir(s.paths.SandboxLogs("a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	w, err := dir.Create("e1", logs.WriterOptions{Owner: logs.KeepOwner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return &follower{s: s, to: to, sandboxID: "a", execID: "e1", done: make(chan struct{})}, w
}

// batchClient also accepts batches. It records each as a line.
type batchClient struct {
	fakeClient
	came []string
}

func (c *batchClient) sendChunk(chunk *agboxv1.LogChunk) error {
	c.came = append(c.came, shown(chunk))
	return nil
}

func (c *batchClient) sendBatch(chunks []*agboxv1.LogChunk) error {
	line := ""
	for _, chunk := range chunks {
		line += shown(chunk)
	}
	c.came = append(c.came, line)
	return nil
}

func (c *batchClient) sendMoved(to *agboxv1.LogCursor) error {
	c.came = append(c.came, fmt.Sprintf("to %d,%d", to.GetStdoutOffset(), to.GetStderrOffset()))
	return nil
}

func shown(chunk *agboxv1.LogChunk) string {
	missing := ""
	if n := chunk.GetDroppedBytes(); n > 0 {
		missing = fmt.Sprintf("-%d", n)
	}
	return fmt.Sprintf("%d:%s@%d%s;", chunk.GetStream(), chunk.GetData(), chunk.GetOffset(), missing)
}

func TestOutputOfBothStreamsComesInOneMessageToWhoAsks(t *testing.T) {
	for _, asks := range []bool{true, false} {
		c := &batchClient{}
		f, w := followed(t, 0, c)
		f.batches = asks
		for _, text := range []string{"a", "b"} {
			w.Write(logs.Stdout, time.Now(), []byte(text))
			w.Write(logs.Stderr, time.Now(), []byte(text+text))
		}
		if err := f.read(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		w.Write(logs.Stderr, time.Now(), []byte("c"))
		if err := f.read(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		f.close()
		want := []string{"1:a@0;2:aa@0;1:b@1;2:bb@2;", "2:c@4;"}
		if !asks {
			want = []string{"1:a@0;", "2:aa@0;", "1:b@1;", "2:bb@2;", "2:c@4;"}
		}
		if !slices.Equal(c.came, want) {
			t.Errorf("asked for batches: %v, got %q, want %q", asks, c.came, want)
		}
	}
}

func TestGapsAreSentWhereTheyAre(t *testing.T) {
	for _, last := range []bool{false, true} {
		c := &batchClient{}
		f, w := followed(t, 0, c)
		_ = w.Close()
		dir, err := logs.OpenDir(f.s.paths.SandboxLogs("a"))
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		f.execID = "e2"
		w, err = dir.Create("e2", logs.WriterOptions{Owner: logs.KeepOwner, MaxBytes: 2})
		if err != nil {
			t.Fatal(err)
		}
		w.Write(logs.Stdout, time.Now(), []byte("abc"))
		if err := w.Sync(); err != nil {
			t.Fatal(err)
		}
		w.Write(logs.Stderr, time.Now(), []byte("de"))
		w.Write(logs.Stderr, time.Now(), []byte("fgh"))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := f.read(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		f.close()
		if want := []string{"1:ab@0;", "1:@2-1;", "2:de@0;", "2:@2-3;"}; !slices.Equal(c.came, want) {
			t.Errorf("last %v: got %q, want %q", last, c.came, want)
		}
	}
}

// A batch must fit into a buffer and has a bounded number of chunks.
func TestBatchesAreBoundedAndWhole(t *testing.T) {
	for _, size := range []int{1, chunkSize / 5} {
		c := &batchClient{}
		f, w := followed(t, 0, c)
		f.batches = true
		want, rounds := "", 3*batchLength/size+10
		for i := range rounds {
			data := bytes.Repeat([]byte{'a' + byte(i%26)}, size)
			w.Write(logs.Stdout, time.Now(), data)
			w.Write(logs.Stderr, time.Now(), data)
			want += fmt.Sprintf("1:%s@%d;2:%s@%d;", data, i*size, data, i*size)
		}
		if err := f.read(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		f.close()
		for _, message := range c.came {
			if len(message) > chunkSize+batchLength*20 || strings.Count(message, ";") > batchLength {
				t.Errorf("a message has %d bytes in %d chunks", len(message), strings.Count(message, ";"))
			}
		}
		if got := strings.Join(c.came, ""); size == 1 && got != want || len(c.came) < 3 {
			t.Errorf("of chunks of %d bytes came %d of %d in %d messages", size, len(got), len(want), len(c.came))
		}
	}
}

// Skipped output is reported between the chunks around it.
func TestABatchIsSentBeforeWhatIsLeftOutIsTold(t *testing.T) {
	c := &batchClient{}
	f, w := followed(t, 0, c)
	defer f.close()
	f.batches, f.selective = true, true
	f.part = logs.Part{Streams: []logs.Stream{logs.Stdout}}
	w.Write(logs.Stdout, time.Now(), []byte("a"))
	w.Write(logs.Stderr, time.Now(), []byte("bb"))
	w.Write(logs.Stdout, time.Now(), []byte("c"))
	w.Write(logs.Stderr, time.Now(), []byte("dd"))
	if err := f.read(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(c.came, " "), "1:a@0;1:c@1; to 2,4"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The call of a client that reads nothing ends although the send blocks. The blocked send
// ends with the call.
func TestAClientThatTakesNothingIsLeft(t *testing.T) {
	c := &fakeClient{stuck: make(chan struct{})}
	f, w := followed(t, time.Millisecond, c)
	w.Write(logs.Stdout, time.Now(), []byte("hello"))
	err := f.run(t.Context(), true)
	f.close()
	if !errdefs.IsResourceExhausted(err) || fault.ReasonOf(err) != agboxv1.ErrorReason_OVERLOADED {
		t.Errorf("run: %v, want OVERLOADED", err)
	}
	close(c.stuck)
	f.s.life.senders.Wait()
	if !f.reader.Suspended() && f.reader.Close() == nil {
		t.Error("the files were left open")
	}
}

// Also after the log was quiet for so long that its files were closed.
func TestAFollowerThatRestedMissesNothing(t *testing.T) {
	c := &fakeClient{}
	f, w := followed(t, 0, c)
	defer f.close()
	for _, text := range []string{"one ", "two ", "three"} {
		w.Write(logs.Stdout, time.Now(), []byte(text))
		if err := f.read(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if err := f.reader.Suspend(); err != nil {
			t.Fatal(err)
		}
	}
	if string(c.data) != "one two three" {
		t.Errorf("got %q", c.data)
	}
}

func TestAFollowerOfARemovedLogSaysWhatToDo(t *testing.T) {
	for name, remove := range map[string]func(f *follower) error{
		"the folder, before the follower came": func(f *follower) error { return os.RemoveAll(f.s.paths.SandboxLogs("a")) },
		"the folder, under a follower that rests": func(f *follower) error {
			return errors.Join(f.read(t.Context(), false), f.reader.Suspend(), os.RemoveAll(f.s.paths.SandboxLogs("a")))
		},
		"the files, under a follower that rests": func(f *follower) error {
			if err := errors.Join(f.read(t.Context(), false), f.reader.Suspend()); err != nil {
				return err
			}
			files, err := filepath.Glob(filepath.Join(f.s.paths.SandboxLogs("a"), "*"))
			for _, file := range files {
				err = errors.Join(err, os.Remove(file))
			}
			return err
		},
	} {
		for _, c := range []struct {
			ended bool
			says  string
		}{{false, "stop and start the sandbox"}, {true, "\"agbox inspect e1\""}} {
			f, w := followed(t, 0, &fakeClient{})
			w.Write(logs.Stdout, time.Now(), []byte("one"))
			if err := remove(f); err != nil {
				t.Fatal(name, err)
			}
			done := make(chan struct{})
			f.done = done
			if c.ended {
				close(done)
			}
			err := f.run(t.Context(), true)
			if fault.ReasonOf(err) != agboxv1.ErrorReason_LOG_UNREADABLE || !strings.Contains(err.Error(), f.s.paths.SandboxLogs("a")) ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("%s, ended %t: %v, want %q", name, c.ended, err, c.says)
			}
			f.close()
		}
	}
}

func TestAMissingDescriptorIsOverloadAndNoLostLog(t *testing.T) {
	err := unreadable("e1", &os.PathError{Op: "open", Path: "x", Err: unix.EMFILE})
	if !errdefs.IsResourceExhausted(err) || fault.ReasonOf(err) != agboxv1.ErrorReason_OVERLOADED {
		t.Errorf("%v, want OVERLOADED", err)
	}
}

// followStream is the call of a client that receives everything.
type followStream struct {
	grpc.ServerStream
	ctx  context.Context
	data string
	end  *agboxv1.LogEnd
}

func (s *followStream) Context() context.Context { return s.ctx }

func (s *followStream) Send(m *agboxv1.FollowExecLogsResponse) error {
	s.data += string(m.GetChunk().GetData())
	s.end = m.GetEnd()
	return nil
}

// The index lags behind the output if the supervisor is killed between the two writes, or
// the host crashes.
func TestWhatNoRecordTellsOfIsGivenOnceNobodyWritesAnyMore(t *testing.T) {
	const lost, late = "hello", "lost\nlast\n"
	ended := func(state agboxv1.ExecState, d *agboxv1.ExecEventDetails) *agboxv1.ExecEventDetails {
		d.ExecId, d.ExecState = "e", state
		return d
	}
	ends := map[string]*agboxv1.ExecEventDetails{
		"lost": ended(agboxv1.ExecState_EXEC_STATE_FAILED, &agboxv1.ExecEventDetails{
			ErrorCode: agboxv1.ErrorReason_EXEC_LOST.String()}),
		"killed with its container": ended(agboxv1.ExecState_EXEC_STATE_CANCELLED, &agboxv1.ExecEventDetails{
			ErrorCode: agboxv1.ErrorReason_SANDBOX_STOPPED_UNDER_EXEC.String()}),
		"exited": ended(agboxv1.ExecState_EXEC_STATE_FINISHED, &agboxv1.ExecEventDetails{
			StdoutBytes: uint64(len(lost + late)), UserTime: durationpb.New(0)}),
		"exited before the rest was written": ended(agboxv1.ExecState_EXEC_STATE_FINISHED, &agboxv1.ExecEventDetails{
			StdoutBytes: uint64(len(lost)), UserTime: durationpb.New(0)}),
		"running": nil,
	}
	parts := map[string]struct {
		req              *agboxv1.FollowExecLogsRequest
		indexed, covered string // what is sent with the rest and without it
	}{
		"all":        {&agboxv1.FollowExecLogsRequest{}, lost + late, lost},
		"a tail":     {&agboxv1.FollowExecLogsRequest{TailLines: new(uint64(1))}, "last\n", lost},
		"no line":    {&agboxv1.FollowExecLogsRequest{TailLines: new(uint64(0))}, "", ""},
		"since then": {&agboxv1.FollowExecLogsRequest{Since: timestamppb.New(time.Now().Add(time.Hour))}, late, ""},
		"until then": {&agboxv1.FollowExecLogsRequest{Until: timestamppb.New(time.Now().Add(time.Hour))}, lost + late, lost},
		"until once": {&agboxv1.FollowExecLogsRequest{Until: timestamppb.New(time.Now().Add(-time.Hour))}, "", ""},
		"its stream": {&agboxv1.FollowExecLogsRequest{Streams: []agboxv1.LogStream{agboxv1.LogStream_LOG_STREAM_STDOUT}}, lost + late, lost},
		"the other":  {&agboxv1.FollowExecLogsRequest{Streams: []agboxv1.LogStream{agboxv1.LogStream_LOG_STREAM_STDERR}}, "", ""},
	}
	for how, d := range ends {
		s := attachable(t)
		f, err := os.OpenFile(filepath.Join(s.paths.SandboxLogs("a"), logs.StdoutName("e")), os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = f.WriteString(late)
			err = errors.Join(err, f.Close())
		}
		if err == nil && d != nil {
			err = s.ledger.EndExec(t.Context(), "a", d)
		}
		if err != nil {
			t.Fatal(err)
		}
		for what, part := range parts {
			want, notice := part.indexed, part.indexed != part.covered
			if how == "running" || how == "exited before the rest was written" {
				want, notice = part.covered, false
			}
			part.req.ExecId = "e"
			stream := &followStream{ctx: t.Context()}
			if err := s.FollowExecLogs(part.req, stream); err != nil {
				t.Errorf("%s, %s: %v", how, what, err)
			}
			if stream.data != want || notice && stream.end.GetNotice() == "" || want == part.covered && what != "no line" && stream.end.GetNotice() != "" {
				t.Errorf("%s, %s: %q, want %q; notice %q", how, what, stream.data, want, stream.end.GetNotice())
			}
		}
	}
}
