package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// finishAll claims and finishes n execs.
func finishAll(r *registry, n int) {
	var work sync.WaitGroup
	for i := range n {
		e, _ := r.claim(fmt.Sprint("e", i), &work)
		r.finish(e, &guestv1.ExecRecord{ExecId: e.id, Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED})
	}
}

func TestASlowWatcherIsCutOffAndTheOthersAreNot(t *testing.T) {
	r := newRegistry()
	slow, quick := r.subscribe(), r.subscribe()
	var got int
	for range 3 {
		finishAll(r, watchBuffer/2)
		for range watchBuffer / 2 {
			<-quick.exits
			got++
		}
		clear(r.execs)
	}
	if got != 3*(watchBuffer/2) {
		t.Errorf("the quick watcher got %d exits", got)
	}
	held := 0
	for range slow.exits { // ends only because it was closed
		held++
	}
	if held != watchBuffer {
		t.Errorf("the slow watcher held %d exits", held)
	}
	r.unsubscribe(slow)
	r.unsubscribe(quick)
}

func TestWatchersAreBounded(t *testing.T) {
	r := newRegistry()
	for range maxWatchers {
		if r.subscribe() == nil {
			t.Fatal("refused too early")
		}
	}
	if r.subscribe() != nil {
		t.Error("one watcher too many")
	}
}

func TestOldExecsAreForgotten(t *testing.T) {
	r := newRegistry()
	finishAll(r, keepFinished+10)
	if e, _ := r.get("e9"); e != nil || len(r.execs) != keepFinished {
		t.Errorf("%d finished execs are in memory", len(r.execs))
	}
	if e, _ := r.get("e10"); e == nil {
		t.Error("a young exec was forgotten")
	}
}

func TestNothingStartsOnceTheSupervisorStops(t *testing.T) {
	r := newRegistry()
	var work sync.WaitGroup
	known, _ := r.claim("known", &work)
	r.close()
	if e, mine := r.claim("known", &work); e != known || mine {
		t.Error("a known exec is no longer found")
	}
	if e, _ := r.claim("new", &work); e != nil {
		t.Error("a new exec was claimed")
	}
}

func TestUserSpecsAreResolvedInTheFilesOfTheContainer(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	passwd := write("passwd", "root:x:0:0::/root:\nworker:x:1000:1001::/home/worker:\nhomeless:x:1002:1002:::\n")
	group := write("group", "root:x:0:\nstaff:x:50:\nvideo:x:44:worker\n")
	with := &Supervisor{cfg: Config{Passwd: passwd, Group: group}}
	without := &Supervisor{cfg: Config{Passwd: dir + "/none", Group: dir + "/none"}}

	for _, c := range []struct {
		s    *Supervisor
		spec string
		want string
	}{
		{with, "", "0:0 [] /root root"},
		{with, "worker", "1000:1001 [44] /home/worker worker"},
		{with, "1000", "1000:1001 [44] /home/worker worker"},
		{with, "worker:staff", "1000:50 [] /home/worker worker"},
		{with, "worker:7", "1000:7 [] /home/worker worker"},
		{with, "4000", "4000:0 [] / "},
		{with, "4000:4001", "4000:4001 [] / "},
		{with, "homeless", "1002:1002 [] / homeless"},
		{without, "", "0:0 [] / "},
		{without, "5:6", "5:6 [] / "},
		{without, "worker", "not found"},
		{with, "worker:none", "not found"},
		{with, "-1", "not found"},
		{with, "99999999999", "not found"},
	} {
		got := "not found"
		if id, fail := c.s.lookupUser(c.spec); fail == nil {
			got = fmt.Sprintf("%d:%d %v %s %s", id.uid, id.gid, id.groups, id.home, id.name)
		} else if fail.kind != guestv1.StartFailure_START_FAILURE_USER_NOT_FOUND {
			t.Errorf("%q: %v", c.spec, fail)
		}
		if got != c.want {
			t.Errorf("%q is %q, not %q", c.spec, got, c.want)
		}
	}
}

func TestAHostileUserFileIsRefusedWithoutWaiting(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	huge := filepath.Join(dir, "huge")
	f, err := os.Create(huge)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	for _, path := range []string{fifo, huge, dir, "/dev/zero"} {
		if raw, err := readUserFile(path); err == nil {
			t.Errorf("%s was read: %d bytes", path, len(raw))
		}
	}
}

func TestPermissionToExecuteFollowsOwnerGroupAndOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	uid, gid := os.Getuid(), os.Getgid()
	owner, member := &identity{uid: uid, gid: -2}, &identity{uid: -3, gid: -3, groups: []int{gid}}
	stranger, root := &identity{uid: -3, gid: -3}, &identity{}
	for mode, may := range map[os.FileMode][]*identity{
		0o600: {}, 0o100: {owner, root}, 0o010: {member, root}, 0o001: {stranger, root},
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []*identity{owner, member, stranger, root} {
			want := slices.Contains(may, id)
			if id == owner && uid == 0 { // is root as well
				want = mode != 0o600
			}
			if got := id.mayExecute(st); got != want {
				t.Errorf("mode %o: %+v may execute: %v", mode, *id, got)
			}
		}
	}
}

func TestOnlyOutsidersMayConnect(t *testing.T) {
	for _, c := range []struct {
		peer unix.Ucred
		pid  int
		want bool
	}{
		{unix.Ucred{Pid: 0, Uid: 1000}, 1, true},   // a daemon outside the container
		{unix.Ucred{Pid: 1, Uid: 0}, 1, true},      // the same in gVisor
		{unix.Ucred{Pid: 7, Uid: 0}, 1, false},     // root inside
		{unix.Ucred{Pid: 7, Uid: 1000}, 1, false},  // inside, with the same number as the daemon's user
		{unix.Ucred{Pid: 7, Uid: 0}, 99, true},     // root, without a container
		{unix.Ucred{Pid: 7, Uid: 1000}, 99, false}, // another user, without a container
	} {
		if got := trustedPeer(&c.peer, c.pid, 0); got != c.want {
			t.Errorf("%+v calls process %d: %v", c.peer, c.pid, got)
		}
	}
}

func TestMessagesStayShortAndWhole(t *testing.T) {
	if got := show(strings.Repeat("x", 1000)); len(got) > longestShown+10 {
		t.Errorf("%d bytes are shown", len(got))
	}
	if got := show("a\nb\xff"); got != `"a\nb\xff"` {
		t.Errorf("shown as %s", got)
	}
}

func TestKillsForWantOfMemoryAreCounted(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"v2": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n",
		"v1": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for want, files := range map[uint64][]string{
		2: {dir + "/none", dir + "/v2"}, 7: {dir + "/v1"}, 0: {dir + "/none"},
	} {
		c := openOOMCounter(files)
		if got := c.kills(); got != want {
			t.Errorf("%v: %d kills", files, got)
		}
		if c.f != nil {
			_ = c.f.Close()
		}
	}
}

// newInside returns a supervisor that is not running.
func newInside(t *testing.T) *Supervisor {
	t.Helper()
	s, err := New(Config{Boot: &guestv1.BootConfig{OwnerUid: uint32(os.Getuid()), OwnerGid: uint32(os.Getgid())}, LogDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.collecting, s.abandon = context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		s.abandon()
		s.work.Wait()
		if err := errors.Join(s.logs.Close(), s.devNull.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestWhatWasWrittenBeforeTheExitIsInTheLogWhenTheExitIsTold(t *testing.T) {
	const size = 60_000 // fits in a pipe
	s := newInside(t)
	w := s.registry.subscribe()
	e, _ := s.registry.claim("e", &s.work)
	writer, fail := s.createLogs(t.Context(), &guestv1.StartRequest{ExecId: "e"})
	if fail != nil {
		t.Fatal(fail.message)
	}
	out, err := s.output.Pipes(writer)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Started() // a grandchild holds it open all the time
	for _, f := range []*os.File{out.Stdout, out.Stderr} {
		if _, err := f.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	// The exit is known before any output was read.
	record := &guestv1.ExecRecord{ExecId: "e", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING}
	ch := &child{pid: -1, exited: make(chan exit, 1)}
	ch.exited <- exit{at: time.Now()}
	s.registry.running(e, ch, nil, record)
	go s.supervise(&run{exec: e, child: ch, record: record, writer: writer, streams: &streams{out: out}, sampler: s.sample(ch)})
	r := <-w.exits
	if r.GetStdoutBytes() != size || r.GetStderrBytes() != size {
		t.Errorf("the exit tells of %d and %d bytes", r.GetStdoutBytes(), r.GetStderrBytes())
	}
	if raw, err := os.ReadFile(filepath.Join(s.cfg.LogDir, logs.StderrName("e"))); err != nil || len(raw) != size {
		t.Errorf("the log has %d bytes, %v", len(raw), err)
	}
	s.abandon() // otherwise the supervisor waits for the grandchild
}

func TestAnExitBetweenTheSubscriptionAndTheLookIsToldOnce(t *testing.T) {
	s := newInside(t)
	var work sync.WaitGroup
	finish := func(id string) {
		e, _ := s.registry.claim(id, &work)
		s.registry.finish(e, &guestv1.ExecRecord{ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told []string
	err := s.watch(ctx, []string{"between"}, func() error { finish("between"); return nil }, func(r *guestv1.ExecRecord) error {
		switch told = append(told, r.GetExecId()); len(told) {
		case 1:
			finish("later")
		case 2:
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || strings.Join(told, " ") != "between later" {
		t.Errorf("told %v, then %v", told, err)
	}
}

// The count of a writer is kept until the end, whatever the number of writers.
func TestAWriterIsNotForgottenWhenTheInputEnds(t *testing.T) {
	in, child, err := stdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Close() }()
	write := func(writer string, offset uint64) (uint64, bool, error) {
		return in.write(t.Context(), &guestv1.WriteStdinRequest{Writer: writer, Offset: offset, Data: []byte("x")})
	}
	if n, open, err := write("first", 0); n != 1 || !open || err != nil {
		t.Fatal(n, open, err)
	}
	in.shut()
	for i := range 10 * maxWriters {
		if n, open, err := write(fmt.Sprint("w", i), 0); n != 0 || open || err != nil {
			t.Fatal(n, open, err)
		}
	}
	if n, open, err := write("first", 1); n != 1 || open || err != nil {
		t.Error(n, open, err)
	}
}

func TestAWatchThatBeginsAfterTheLastExitEnds(t *testing.T) {
	r := newRegistry()
	before := r.subscribe()
	r.dismissWatchers()
	after := r.subscribe()
	for range before.exits { // both end
	}
	for range after.exits {
	}
	r.unsubscribe(after)
}
