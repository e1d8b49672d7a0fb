package execs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
)

// adoptedAt is the time of the adoptions in these tests.
var adoptedAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// leftBy is the log folder of sandbox "a", whose execs run as user agent in /work.
type leftBy struct {
	t       *testing.T
	install paths.Install
	dir     *logs.Dir
}

func newLeftBy(t *testing.T) *leftBy {
	t.Helper()
	l := &leftBy{t: t, install: paths.Install{Data: t.TempDir()}}
	for _, folder := range []string{l.install.SandboxLogs("a"), filepath.Dir(l.install.GuestBoot("a"))} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := (&guestv1.BootConfig{User: "agent", Cwd: "/work", Command: []string{"serve"}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.install.GuestBoot("a"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if l.dir, err = logs.OpenDir(l.install.SandboxLogs("a")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.dir.Close() })
	return l
}

func (l *leftBy) write(fileID string, rec *guestv1.ExecRecord) {
	l.t.Helper()
	raw, err := rec.MarshalVT()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.dir.WriteStatus(fileID, raw, logs.StatusOptions{Owner: logs.KeepOwner, NoSync: true}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *leftBy) adopt(running bool) ledger.AdoptedExecs {
	l.t.Helper()
	found, err := AdoptAll(l.t.Context(), l.install, "a", running, adoptedAt)
	if err != nil {
		l.t.Fatal(err)
	}
	return found
}

// at is a time, in minutes before the adoption.
func at(minutes int) *guestv1.Timestamp {
	return guestv1.New(adoptedAt.Add(-time.Duration(minutes) * time.Minute))
}

func idsOf(found ledger.AdoptedExecs) (list []string) {
	for _, e := range found.Execs {
		list = append(list, e.Request.GetExecId())
	}
	return list
}

func TestExecsAreAdoptedFromTheirStatusFiles(t *testing.T) {
	l := newLeftBy(t)
	l.write("runs", &guestv1.ExecRecord{
		ExecId: "runs", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, StartedAt: at(50), BootId: "boot",
		Request: &guestv1.RecordedRequest{
			Command: []string{"sh", "-c", "work"}, Name: "job", Cwd: "/tmp", User: "0:0", Tty: true, Stdin: true,
			TimeoutMs: 60000, IdleTimeoutMs: 1500, MaxLogBytes: 9,
		},
	})
	l.write("old", &guestv1.ExecRecord{ExecId: "old", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, StartedAt: at(90)})
	l.write("main-a", &guestv1.ExecRecord{ExecId: "main-a", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, StartedAt: at(99)})
	l.write("seven", &guestv1.ExecRecord{
		ExecId: "seven", Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED, StartedAt: at(20), FinishedAt: at(10), ExitCode: 7, StdoutBytes: 5,
		Request: &guestv1.RecordedRequest{Command: []string{"false"}, Cwd: "/work", User: "agent"},
	})
	l.write("late", &guestv1.ExecRecord{
		ExecId: "late", Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED, StartedAt: at(40), FinishedAt: at(30), ExitCode: 143, Signal: 15,
		Cancelled: true, EndCause: guestv1.EndCause_END_CAUSE_TIMEOUT, Request: &guestv1.RecordedRequest{Command: []string{"sleep"}, TimeoutMs: 2000},
	})
	l.write("failed", &guestv1.ExecRecord{
		ExecId: "failed", Phase: guestv1.ExecPhase_EXEC_PHASE_FAILED, FinishedAt: at(5), ExitCode: 127,
		Failure: guestv1.StartFailure_START_FAILURE_COMMAND_NOT_FOUND, FailureMessage: "There is none.",
	})

	found := l.adopt(true)
	if got, want := idsOf(found), []string{"late", "seven", "failed", "main-a", "old", "runs"}; !slices.Equal(got, want) || found.Refused+found.Omitted > 0 || found.More {
		t.Fatalf("adopted %q, want %q; %+v", got, want, found)
	}
	late, seven, failed, main, old, runs := found.Execs[0], found.Execs[1], found.Execs[2], found.Execs[3], found.Execs[4], found.Execs[5]
	if d := late.End; d.GetErrorCode() != "EXEC_TIMEOUT" || !strings.HasSuffix(d.GetErrorMessage(), "timeout of 2s.") || d.GetExitCode() != 143 {
		t.Errorf("late: %v", d)
	}
	wantRequest(t, seven, &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "seven", Command: []string{"false"}})
	if d := seven.End; d.GetExecState() != agboxv1.ExecState_EXEC_STATE_FINISHED || d.GetExitCode() != 7 || d.GetStdoutBytes() != 5 ||
		!proto.Equal(d.GetFinishedAt(), onHost(at(10))) || !proto.Equal(seven.StartedAt, onHost(at(20))) {
		t.Errorf("seven: %v", d)
	}
	if d := failed.End; d.GetExecState() != agboxv1.ExecState_EXEC_STATE_FAILED || d.GetErrorCode() != "COMMAND_NOT_FOUND" {
		t.Errorf("failed: %v", d)
	}
	wantRequest(t, main, &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "main-a", Name: "main", Command: []string{"serve"}, User: "agent", Cwd: "/work"})
	wantRequest(t, old, &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "old"})
	wantRequest(t, runs, &agboxv1.CreateExecRequest{
		SandboxId: "a", ExecId: "runs", Command: []string{"sh", "-c", "work"}, Name: "job", Cwd: "/tmp", User: "0:0", Tty: true, Stdin: true,
		Timeout: durationpb.New(time.Minute), IdleTimeout: durationpb.New(1500 * time.Millisecond), MaxLogBytes: 9,
	})
	if !main.Main || main.End != nil || old.Main || old.End != nil || runs.End != nil || !proto.Equal(runs.StartedAt, onHost(at(50))) {
		t.Errorf("of those that run: %v, %v, %v", main, old, runs)
	}
}

func wantRequest(t *testing.T, e ledger.AdoptedExec, want *agboxv1.CreateExecRequest) {
	t.Helper()
	if !proto.Equal(e.Request, want) {
		t.Errorf("the request is %v, want %v", e.Request, want)
	}
}

func TestExecsOfAContainerThatDoesNotRunAreAdoptedAsLost(t *testing.T) {
	l := newLeftBy(t)
	l.write("x", &guestv1.ExecRecord{ExecId: "x", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, StartedAt: at(9)})
	found := l.adopt(false)
	d := found.Execs[0].End
	if d.GetErrorCode() != "EXEC_LOST" || d.GetExitCode() == 0 || !proto.Equal(d.GetFinishedAt(), onHost(at(0))) || !proto.Equal(d.GetStartedAt(), onHost(at(9))) {
		t.Errorf("its end is %v", d)
	}
}

func TestASandboxWithoutLogsHasNoExecsToAdopt(t *testing.T) {
	found, err := AdoptAll(t.Context(), paths.Install{Data: t.TempDir()}, "a", true, adoptedAt)
	if err != nil || len(found.Execs) != 0 {
		t.Errorf("found %+v, error %v", found, err)
	}
	l := newLeftBy(t)
	folder := l.install.SandboxLogs("a")
	if err := errors.Join(os.Remove(folder), os.Symlink("/", folder)); err != nil {
		t.Fatal(err)
	}
	if _, err := AdoptAll(t.Context(), l.install, "a", true, adoptedAt); !errors.Is(err, logs.ErrTampered) {
		t.Errorf("a link in the place of the folder gives %v", err)
	}
}

func TestForgedStatusFilesAreNotAdopted(t *testing.T) {
	l := newLeftBy(t)
	ended := func(change func(*guestv1.ExecRecord)) *guestv1.ExecRecord {
		rec := &guestv1.ExecRecord{ExecId: "f", Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED}
		change(rec)
		return rec
	}
	other := l.install.SandboxLogs("b")
	path := func(name string) string { return filepath.Join(l.install.SandboxLogs("a"), name+".status") }
	theirs := newLeftBy(t)
	theirs.write("f", ended(func(*guestv1.ExecRecord) {}))
	forgeries := map[string]func() error{
		"another id":   func() error { l.write("f", ended(func(r *guestv1.ExecRecord) { r.ExecId = "g" })); return nil },
		"an exit code": func() error { l.write("f", ended(func(r *guestv1.ExecRecord) { r.ExitCode = 256 })); return nil },
		"a state":      func() error { l.write("f", ended(func(r *guestv1.ExecRecord) { r.Phase = 9 })); return nil },
		"no state":     func() error { l.write("f", ended(func(r *guestv1.ExecRecord) { r.Phase = 0 })); return nil },
		"a time": func() error {
			l.write("f", ended(func(r *guestv1.ExecRecord) { r.StartedAt = &guestv1.Timestamp{Nanos: -1} }))
			return nil
		},
		"a number of bytes": func() error { l.write("f", ended(func(r *guestv1.ExecRecord) { r.StdoutBytes = 1 << 63 })); return nil },
		"a long request": func() error {
			l.write("f", ended(func(r *guestv1.ExecRecord) {
				r.Request = &guestv1.RecordedRequest{Command: []string{strings.Repeat("x", 40000)}}
			}))
			return nil
		},
		"another sandbox's main command": func() error {
			l.write("main-b", ended(func(r *guestv1.ExecRecord) { r.ExecId = "main-b" }))
			return nil
		},
		"a link": func() error {
			return errors.Join(os.MkdirAll(other, 0o700), os.Symlink(filepath.Join(theirs.install.SandboxLogs("a"), "f.status"), path("f")))
		},
		"a hard link": func() error { return os.Link(filepath.Join(theirs.install.SandboxLogs("a"), "f.status"), path("f")) },
		"a FIFO":      func() error { return unix.Mkfifo(path("f"), 0o600) },
		"a folder":    func() error { return os.Mkdir(path("f"), 0o700) },
		"a huge file": func() error { return errors.Join(os.WriteFile(path("f"), nil, 0o600), os.Truncate(path("f"), 1<<40)) },
		"zeros":       func() error { return os.WriteFile(path("f"), make([]byte, 4096), 0o600) },
		"no protobuf": func() error {
			return l.dir.WriteStatus("f", []byte("\xff\xff\xff"), logs.StatusOptions{Owner: logs.KeepOwner, NoSync: true})
		},
	}
	for name, forge := range forgeries {
		if err := forge(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if found := l.adopt(true); len(found.Execs) != 0 || found.Refused != 1 {
			t.Errorf("%s: adopted %v, refused %d", name, found.Execs, found.Refused)
		}
		if err := errors.Join(os.RemoveAll(path("f")), os.RemoveAll(path("main-b"))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestForgedClaimsInAStatusFileAreLeftOut(t *testing.T) {
	l := newLeftBy(t)
	future := guestv1.New(adoptedAt.Add(1000 * time.Hour))
	for id, req := range map[string]*guestv1.RecordedRequest{
		"name":    {Command: []string{"x"}, Name: "../../etc"},
		"nul":     {Command: []string{"a\x00b"}},
		"cwd":     {Command: []string{"x"}, Cwd: "relative"},
		"user":    {Command: []string{"x"}, User: "a b"},
		"timeout": {Command: []string{"x"}, TimeoutMs: 1<<64 - 1},
		"empty":   {},
	} {
		l.write(id, &guestv1.ExecRecord{
			ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED, StartedAt: future, FinishedAt: future, Request: req,
		})
	}
	found := l.adopt(true)
	if len(found.Execs) != 6 {
		t.Fatalf("adopted %q", idsOf(found))
	}
	for _, e := range found.Execs {
		wantRequest(t, e, &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: e.Request.GetExecId()})
		if !proto.Equal(e.End.GetFinishedAt(), onHost(at(0))) || !proto.Equal(e.StartedAt, onHost(at(0))) {
			t.Errorf("times in the future are kept: %v", e)
		}
	}
}

func TestARunningNameIsAdoptedOnce(t *testing.T) {
	l := newLeftBy(t)
	for i, name := range []string{"job", "job", "main"} {
		id := fmt.Sprint("x", i)
		l.write(id, &guestv1.ExecRecord{
			ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, StartedAt: at(9 - i),
			Request: &guestv1.RecordedRequest{Command: []string{"x"}, Name: name},
		})
	}
	l.write("main-a-2", &guestv1.ExecRecord{ExecId: "main-a-2", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, StartedAt: at(1)})
	var names []string
	for _, e := range l.adopt(true).Execs {
		names = append(names, e.Request.GetName())
	}
	if !slices.Equal(names, []string{"job", "", "", "main"}) {
		t.Errorf("the names are %q", names)
	}
}

func TestAdoptedExecsAreBounded(t *testing.T) {
	l := newLeftBy(t)
	for i := range maxAdoptedRunning + 1 {
		id := fmt.Sprint("r", i)
		l.write(id, &guestv1.ExecRecord{ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING})
	}
	for i := range maxAdoptedEnded + 2 {
		id := fmt.Sprint("e", i)
		l.write(id, &guestv1.ExecRecord{ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED, FinishedAt: at(1 + i)})
	}
	found := l.adopt(true)
	if n := len(found.Execs); n != maxAdoptedEnded+maxAdoptedRunning || found.Omitted != 3 {
		t.Errorf("adopted %d and omitted %d", n, found.Omitted)
	}
	// The newest are kept, in the order of their ends.
	first, last := found.Execs[0].Request.GetExecId(), found.Execs[maxAdoptedEnded-1].Request.GetExecId()
	if first != fmt.Sprint("e", maxAdoptedEnded-1) || last != "e0" {
		t.Errorf("of those that ended %s to %s are adopted", first, last)
	}
}

// An adopted exec was started before. A supervisor that does not know it, for example
// because its status file was removed, must not be asked to start it.
func TestAnAdoptedExecIsNeverStarted(t *testing.T) {
	b := newBench(t)
	// As ledger.Adopt records it: without the boot id of a supervisor.
	req := &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "x", Command: []string{"true"}}
	if _, err := b.ledger.AcceptExec(t.Context(), req, ""); err != nil {
		t.Fatal(err)
	}
	s := &supervisor{boot: "boot1", start: runs("boot1")}
	b.serve(s)
	b.connect()
	if st := b.ended(); st.GetErrorCode() != "EXEC_LOST" || !strings.Contains(st.GetError(), "adopted") || s.started() != 0 {
		t.Errorf("status %v, %d starts", st, s.started())
	}
}
