package supervisor_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

func TestExitCodesAndSignalsAreTheRealOnes(t *testing.T) {
	b := newBox(t)
	for i, c := range []struct {
		script       string
		code, signal int32
	}{
		{"exit 0", 0, 0},
		{"exit 7", 7, 0},
		{"exit 255", 255, 0},
		{"kill -KILL $$", 137, 9},
		{"kill -TERM $$", 143, 15},
	} {
		r := b.run(sh(fmt.Sprint("e", i), c.script))
		if r.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_EXITED || r.GetExitCode() != c.code || r.GetSignal() != c.signal {
			t.Errorf("%s: %v", c.script, r)
		}
		if !reflect.DeepEqual(r, b.status(r.GetExecId())) {
			t.Errorf("%s: the status file says %v, the watch %v", c.script, b.status(r.GetExecId()), r)
		}
		if r.GetPid() <= 0 || r.GetFinishedAt().AsTime().Before(r.GetStartedAt().AsTime()) {
			t.Errorf("%s: pid or times are wrong: %v", c.script, r)
		}
	}
}

func TestOutputGoesToItsFileAndIsCounted(t *testing.T) {
	b := newBox(t)
	r := b.run(sh("e", "printf out; printf error >&2; read x || printf eof"))
	if got := b.stdout("e"); got != "outeof" {
		t.Errorf("stdout holds %q", got)
	}
	if got := b.file("logs/e.stderr.log"); got != "error" {
		t.Errorf("stderr holds %q", got)
	}
	if r.GetStdoutBytes() != 6 || r.GetStderrBytes() != 5 {
		t.Errorf("counted %d and %d bytes", r.GetStdoutBytes(), r.GetStderrBytes())
	}
}

func TestOutputOverTheLimitIsDrainedAndCounted(t *testing.T) {
	b := newBox(t, func(_ *box, boot *guestv1.BootConfig) { boot.MaxLogBytes = 1000 })
	r := b.run(sh("e", "head -c 300000 /dev/zero; exit 4"))
	if r.GetExitCode() != 4 || r.GetStdoutBytes() != 1000 || r.GetStdoutDroppedBytes() != 299000 {
		t.Error(r)
	}
}

func TestManyLinesArriveWholeAndInOrder(t *testing.T) {
	const lines = 100_000
	b := newBox(t)
	r := b.run(sh("e", fmt.Sprintf("seq 1 %d", lines)))
	in := bufio.NewScanner(strings.NewReader(b.stdout("e")))
	for i := 1; i <= lines; i++ {
		if !in.Scan() || in.Text() != fmt.Sprint(i) {
			t.Fatalf("line %d is %q", i, in.Text())
		}
	}
	if in.Scan() {
		t.Errorf("there is more than was written: %q", in.Text())
	}
	if got := uint64(len(b.stdout("e"))); r.GetStdoutBytes() != got {
		t.Errorf("the status counts %d bytes, the file has %d", r.GetStdoutBytes(), got)
	}
}

func TestOneIDStartsOneProcess(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	trace := filepath.Join(b.dir, "trace")
	b.must(os.WriteFile(trace, nil, 0o666))
	b.must(os.Chmod(trace, 0o666))
	var calls sync.WaitGroup
	pids := make([]int32, 30)
	for i := range pids {
		calls.Go(func() {
			r, err := c.Start(t.Context(), sh("e", "echo x >> "+trace))
			if err != nil {
				t.Error(err)
				return
			}
			pids[i] = r.GetPid()
		})
	}
	calls.Wait()
	b.end("e")
	if got := b.file("trace"); got != "x\n" {
		t.Errorf("the command ran %d times", strings.Count(got, "x"))
	}
	for _, pid := range pids {
		if pid != pids[0] {
			t.Errorf("the calls speak of processes %v", pids)
			break
		}
	}
}

func TestAnIDIsNotUsedAgainAfterARestart(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	pids := b.fifo("pids")
	before := b.run(sh("done", "exit 9"))
	running := b.start(c, sh("running", "echo $$ > "+pids.Name()+"; exec sleep 1000"))
	killAtEnd(t, number(t, pids))
	b.signal(syscall.SIGKILL)
	_ = b.wait()
	b.boot()

	c = b.dial()
	if after := b.start(c, sh("done", "exit 1")); !reflect.DeepEqual(before, after) {
		t.Errorf("a finished exec was %v and became %v", before, after)
	}
	lost := b.start(c, sh("running", "exit 1"))
	if lost.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_RUNNING || lost.GetBootId() != running.GetBootId() || lost.GetBootId() == c.BootID() {
		t.Errorf("an exec that was lost is %v", lost)
	}
	records := b.ends("running", "done", "never")
	for _, want := range []guestv1.ExecPhase{
		guestv1.ExecPhase_EXEC_PHASE_RUNNING, guestv1.ExecPhase_EXEC_PHASE_EXITED, guestv1.ExecPhase_EXEC_PHASE_UNKNOWN,
	} {
		if r := next(t, records); r.GetPhase() != want {
			t.Errorf("the watch says %v, not %v", r, want)
		}
	}
}

func TestADamagedStatusFileNeverStartsAnExecAgain(t *testing.T) {
	b := newBox(t)
	b.write("logs/e.status", "nonsense")
	r := b.start(b.dial(), sh("e", "exit 0"))
	if r.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_RUNNING || r.GetBootId() != "" || r.GetFailureMessage() == "" {
		t.Error(r)
	}
}

func TestWhatCannotBeStartedIsARecordThatSaysWhy(t *testing.T) {
	b := newBox(t)
	b.write("plain", "#!/bin/sh\n")
	b.write("script", "#!/no/such/interpreter\n")
	b.write("garbage", "\x01\x02\x03")
	b.must(os.Chmod(filepath.Join(b.dir, "script"), 0o755))
	b.must(os.Chmod(filepath.Join(b.dir, "garbage"), 0o755))
	const (
		notFound      = guestv1.StartFailure_START_FAILURE_COMMAND_NOT_FOUND
		notExecutable = guestv1.StartFailure_START_FAILURE_COMMAND_NOT_EXECUTABLE
		noUser        = guestv1.StartFailure_START_FAILURE_USER_NOT_FOUND
		noDirectory   = guestv1.StartFailure_START_FAILURE_DIRECTORY_NOT_FOUND
	)
	for id, c := range map[string]struct {
		req  *guestv1.StartRequest
		kind guestv1.StartFailure
		code int32
		says string
	}{
		"name":        {request("", "no-such-command"), notFound, 127, `"no-such-command" was not found in the PATH`},
		"path":        {request("", "/no/such/command"), notFound, 127, `"/no/such/command" does not exist`},
		"mode":        {request("", b.dir+"/plain"), notExecutable, 126, "chmod +x"},
		"directory":   {request("", b.dir), notExecutable, 126, "is a directory"},
		"interpreter": {request("", b.dir+"/script"), notExecutable, 126, "interpreter"},
		"format":      {request("", b.dir+"/garbage"), notExecutable, 126, "no program for this machine"},
		"user":        {&guestv1.StartRequest{Command: []string{"true"}, User: "nobody-here"}, noUser, 126, `user "nobody-here" is not in`},
		"group":       {&guestv1.StartRequest{Command: []string{"true"}, User: "me:no-group"}, noUser, 126, `group of "me:no-group" is not in`},
		"cwd":         {&guestv1.StartRequest{Command: []string{"true"}, User: "me", Cwd: "/no/such/directory"}, noDirectory, 126, "does not exist"},
		"cwd-file":    {&guestv1.StartRequest{Command: []string{"true"}, User: "me", Cwd: b.dir + "/plain"}, noDirectory, 126, "is a file"},
	} {
		c.req.ExecId = id
		r := b.start(b.dial(), c.req)
		if r.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_FAILED || r.GetFailure() != c.kind || r.GetExitCode() != c.code {
			t.Errorf("%s: %v", id, r)
		}
		if m := r.GetFailureMessage(); !strings.Contains(m, c.says) || !strings.HasSuffix(m, ".") {
			t.Errorf("%s: the message is %q", id, m)
		}
		if !reflect.DeepEqual(r, b.status(id)) {
			t.Errorf("%s: the status file says %v", id, b.status(id))
		}
	}
}

func TestTheEnvironmentIsLaidOverTheContainers(t *testing.T) {
	b := newBox(t)
	req := sh("e", `echo "$FROM_CONTAINER $BOTH $HOME $USER $AGBOX_EXEC_ID"; pwd`)
	req.Env = []string{"BOTH=request", "AGBOX_EXEC_ID=forged"}
	req.Cwd = b.dir
	b.run(req)
	if got := b.stdout("e"); got != "yes request /home/me me e\n"+b.dir+"\n" {
		t.Errorf("the command saw %q", got)
	}
	home := sh("home", "echo $HOME")
	home.Env = []string{"HOME=/given"}
	b.run(home)
	if got := b.stdout("home"); got != "/given\n" {
		t.Errorf("HOME of the request became %q", got)
	}
}

func TestAnIncarnationHasNoVariablesOfAgboxFromTheContainer(t *testing.T) {
	b := newBox(t)
	for id, want := range map[string]string{"command": "yes container container", "program": "yes  given"} {
		req := sh(id, `echo "$FROM_CONTAINER $AGBOX_CHECKPOINT $AGBOX_MODEL"`)
		if id == "program" {
			req.Env = []string{"AGBOX_MODEL=given"}
			req.Agent = &guestv1.AgentBoot{AgentId: "a", Incarnation: 1}
		}
		b.run(req)
		if got := b.stdout(id); got != want+"\n" {
			t.Errorf("the %s saw %q; want %q", id, got, want)
		}
	}
}

func TestCommandsRunInASessionOfTheirOwnAndAreKilledFirst(t *testing.T) {
	b := newBox(t)
	// The preference is set when Start returns. A very quick process has started its
	// first children before that.
	started := b.fifo("started")
	b.start(b.dial(), sh("e", `read x < `+started.Name()+`; cut -d" " -f1,5,6 /proc/$$/stat; cat /proc/self/oom_score_adj; ls /proc/self/fd`))
	_, err := started.WriteString("yes\n")
	b.must(err)
	b.end("e")
	f := strings.Fields(b.stdout("e"))
	if len(f) < 4 || f[0] != f[1] || f[1] != f[2] {
		t.Fatalf("pid, process group and session are %v", f)
	}
	if f[3] != "500" {
		t.Errorf("oom_score_adj is %s", f[3])
	}
	if len(f) != 4+4 { // 0, 1, 2 and the directory that ls reads
		t.Errorf("descriptors leaked into the command: %v", f[4:])
	}
}
