package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestCreatePrintsTheIDAlone(t *testing.T) {
	d, socket := serveScripted(t)
	code, out, errs := agbox(t, socket, "create", "demo", "--image", "good", "-e", "A=1", "--env", "B", "-e", "UNSET", "--", "run", "--flag")
	d.mu.Lock()
	defer d.mu.Unlock()
	if code != 0 || out != d.boxes[0].GetSandboxId()+"\n" {
		t.Errorf("code %d, stdout %q", code, out)
	}
	if want := "agbox: getting the image: pulling good, 10%\n"; errs != want {
		t.Errorf("stderr %q, want %q", errs, want)
	}
}

func TestCreateSendsWhatTheFlagsSay(t *testing.T) {
	o := createOptions{specOptions: specOptions{image: "x", vars: envFlags{plain: []string{"A=1=2", "B", "UNSET"}}, labels: []string{"k=v"}, idleTTL: "1h"}}
	input, err := o.request(t.Context(), newCLI(t, "").app, nil, []string{"name"}, []string{"run", "-x"})
	if err != nil {
		t.Fatal(err)
	}
	in := input.Request
	spec := in.GetCreateSpec()
	if fmt.Sprint(spec.GetEnvs()) != "map[A:1=2 B:from-B]" || fmt.Sprint(spec.GetLabels()) != "map[k:v]" ||
		spec.GetName() != "name" || fmt.Sprint(spec.GetCommand()) != "[run -x]" || spec.GetIdleTtl().AsDuration() != time.Hour || in.GetSandboxId() == "" {
		t.Errorf("got %v", in)
	}
}

func TestCreatePaintsOneLineOnATerminal(t *testing.T) {
	_, socket := serveScripted(t)
	c := newCLI(t, socket)
	c.width = func() int { return 20 }
	if code := c.exec(t.Context(), "create", "--image", "good"); code != 0 {
		t.Fatalf("code %d", code)
	}
	if want := "\r\x1b[Kgetting the image:…\r\x1b[Kgetting the image:…\r\x1b[Kstarting\r\x1b[K"; c.errs.String() != want {
		t.Errorf("got %q", c.errs.String())
	}
}

func TestWhatASandboxRunsBeforeItIsReadyIsSaid(t *testing.T) {
	c := newCLI(t, "")
	p := &progress{shownLine: shownLine{app: c.app}}
	event := func(typ agboxv1.EventType, hook *agboxv1.HookRef) *agboxv1.SandboxEvent {
		return &agboxv1.SandboxEvent{EventType: typ, Details: &agboxv1.SandboxEvent_Exec{Exec: &agboxv1.ExecEventDetails{ExecId: "e1", Hook: hook}}}
	}
	p.show(event(agboxv1.EventType_EXEC_STARTED, &agboxv1.HookRef{Index: 1}))
	p.show(event(agboxv1.EventType_EXEC_FINISHED, &agboxv1.HookRef{Index: 1}))
	p.show(event(agboxv1.EventType_EXEC_STARTED, nil))
	p.show(&agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_SERVICE_STARTED, Details: &agboxv1.SandboxEvent_Service{Service: &agboxv1.ServiceEventDetails{Name: "db"}}})
	p.show(event(agboxv1.EventType_EXEC_STARTED, &agboxv1.HookRef{Service: "db"}))
	const want = "agbox: running command 2 of post_create: agbox logs -f e1\n" +
		"agbox: running command 1 of post_start_on_primary of service db: agbox logs -f e1\n"
	if got := c.errs.String(); got != want {
		t.Errorf("got %q", got)
	}
}

func TestServicesThatAreStartedAgainAreSaidOnce(t *testing.T) {
	c := newCLI(t, "")
	p := &progress{shownLine: shownLine{app: c.app}}
	for range 3 {
		p.show(&agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_SERVICE_STARTED, Details: &agboxv1.SandboxEvent_Service{Service: &agboxv1.ServiceEventDetails{Name: "db"}}})
		p.show(&agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_PREPARING, Details: &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{Phase: "services", Reason: "db"}}})
	}
	if got, want := c.errs.String(), "agbox: starting services: db\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestASandboxThatFailsLeavesNothingBehind(t *testing.T) {
	d, socket := serveScripted(t)
	code, out, errs := agbox(t, socket, "create", "demo", "--image", "missing")
	if code != 3 || out != "" || !strings.Contains(errs, "agbox: There is no image missing.\n") || !strings.Contains(errs, "was removed") {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
	if state := d.boxes[0].GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_DELETED {
		t.Errorf("it is %v", state)
	}
	code, _, errs = agbox(t, socket, "create", "demo", "--image", "missing", "--keep-failed")
	if code != 3 || !strings.Contains(errs, "agbox rm "+d.boxes[1].GetSandboxId()) {
		t.Errorf("kept: code %d, stderr %q", code, errs)
	}
	if state := d.boxes[1].GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_FAILED {
		t.Errorf("the one to keep is %v", state)
	}
	// The answer to its creation arrived only after it had failed.
	if code, _, errs := agbox(t, socket, "create", "other", "--image", "missing, after a lost answer"); code != 3 || !strings.Contains(errs, "was removed") {
		t.Errorf("after a lost answer: code %d, stderr %q", code, errs)
	}
	// A retry with the id of a failed sandbox must not remove a sandbox that it did not
	// make.
	id := d.boxes[1].GetSandboxId()
	if code, _, _ := agbox(t, socket, "create", "--id", id, "--image", "missing"); code != 3 {
		t.Errorf("again: code %d", code)
	}
	if state := d.boxes[1].GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_FAILED {
		t.Errorf("a repetition removed it: %v", state)
	}
}

func TestCtrlCDuringCreateDeletesTheSandbox(t *testing.T) {
	d, socket := serveScripted(t)
	c := newCLI(t, socket)
	c.errs.wrote = sync.OnceFunc(func() { c.signals <- syscall.SIGINT })
	code := c.exec(t.Context(), "create", "--image", "slow")
	if code != 130 || c.out.String() != "" || !strings.Contains(c.errs.String(), "Interrupted") {
		t.Errorf("code %d, stdout %q, stderr %q", code, c.out.String(), c.errs.String())
	}
	if state := d.boxes[0].GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_DELETED {
		t.Errorf("it is %v", state)
	}
}

func TestCreateNeedNotWait(t *testing.T) {
	d, socket := serveScripted(t)
	code, out, errs := agbox(t, socket, "create", "--no-wait", "--image", "slow")
	if code != 0 || errs != "" || out != d.boxes[0].GetSandboxId()+"\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
}

func TestExecKeepsTheStreamsApartAndTheExitCode(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	for _, tt := range []struct {
		line      string
		code      int
		out, errs string
	}{
		{"exec demo say -u hello", 0, "-u hello\n", "aside\n"},
		{"exec demo -- say -- x", 0, "-- x\n", "aside\n"},
		{"exec demo exit 42", 42, "", ""},
		{"exec demo nope", 127, "", "agbox: nope was not found in the sandbox.\n"},
		{"exec -d demo nope", 127, "", "agbox: nope was not found in the sandbox.\n"},
		{"exec demo lost", 125, "", "agbox: The host went away under the command.\n"},
		{"exec none say x", 125, "", "agbox: There is no sandbox none.\n"},
	} {
		code, out, errs := agbox(t, socket, strings.Fields(tt.line)...)
		if code != tt.code || out != tt.out || errs != tt.errs {
			t.Errorf("%q: code %d, stdout %q, stderr %q", tt.line, code, out, errs)
		}
	}
}

func TestExecFlagsReachTheDaemon(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	code, out, _ := agbox(t, socket, "exec", "-d", "-u", "nobody", "-w", "/tmp", "-e", "A=1", "-e", "B", "--name", "job", "demo", "wait")
	e := d.execs[0]
	if code != 0 || out != e.GetExecId()+"\n" || e.GetUser() != "nobody" || e.GetCwd() != "/tmp" || e.GetName() != "job" ||
		fmt.Sprint(e.GetEnvOverrides()) != "map[A:1 B:from-B]" {
		t.Errorf("code %d, stdout %q, exec %v", code, out, e)
	}
}

func TestCtrlCReachesTheCommand(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT} {
		d, socket := serveScripted(t)
		agbox(t, socket, "create", "demo", "--image", "good")
		c := newCLI(t, socket)
		c.out.wrote = func() { c.signals <- sig }
		if code := c.exec(t.Context(), "exec", "demo", "wait"); code != 128+int(sig) {
			t.Errorf("%v: code %d, stderr %q", sig, code, c.errs.String())
		}
		if fmt.Sprint(d.signals) != fmt.Sprintf("[%d]", sig) {
			t.Errorf("%v: the command got %v", sig, d.signals)
		}
	}
}

func TestASignalBeforeTheStartWaitsForTheCommand(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	c := newCLI(t, socket)
	c.signals <- syscall.SIGTERM
	if code := c.exec(t.Context(), "exec", "demo", "wait"); code != 143 {
		t.Errorf("code %d, stderr %q", code, c.errs.String())
	}
}

func TestTheThirdCtrlCLeavesTheCommandRunning(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	c := newCLI(t, socket)
	c.out.wrote = func() {
		for range 3 {
			c.signals <- syscall.SIGINT
		}
	}
	code := c.exec(t.Context(), "exec", "demo", "wait", "stubborn")
	if code != 130 || !strings.Contains(c.errs.String(), "agbox kill "+d.execs[0].GetExecId()) {
		t.Errorf("code %d, stderr %q", code, c.errs.String())
	}
	if want := "Another Ctrl-C leaves it running in the background; `agbox kill " + d.execs[0].GetExecId() + "` ends it.\n"; strings.Count(c.errs.String(), want) != 1 {
		t.Errorf("the second press does not explain itself: %q", c.errs.String())
	}
	if state := d.execs[0].GetState(); state != agboxv1.ExecState_EXEC_STATE_RUNNING {
		t.Errorf("the command is %v", state)
	}
}

func TestThreeSlowCtrlCsDoNotLeave(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	c := newCLI(t, socket)
	var presses int
	c.now = func() time.Time { presses++; return theTime.Add(time.Duration(presses) * 1500 * time.Millisecond) }
	c.out.wrote = func() {
		for range 3 {
			c.signals <- syscall.SIGINT
		}
	}
	var run sync.WaitGroup
	run.Go(func() {
		if code := c.exec(t.Context(), "exec", "demo", "wait", "stubborn"); code != 143 {
			t.Errorf("code %d, stderr %q", code, c.errs.String())
		}
	})
	d.await(t, func() bool { return len(d.signals) == 3 })
	c.signals <- syscall.SIGTERM
	run.Wait()
}

func TestTheSecondSIGTERMLeavesTheCommandRunning(t *testing.T) {
	for _, line := range []string{"exec demo wait patient", "run good wait patient"} {
		t.Run(line, func(t *testing.T) {
			d, socket := serveScripted(t)
			agbox(t, socket, "create", "demo", "--image", "good")
			c := newCLI(t, socket)
			c.out.wrote = func() { c.signals <- syscall.SIGTERM }
			var sent sync.WaitGroup
			defer sent.Wait()
			sent.Go(func() {
				d.await(t, func() bool { return len(d.signals) == 1 })
				c.signals <- syscall.SIGTERM
			})
			code := c.exec(t.Context(), strings.Fields(line)...)
			id := d.execs[0].GetExecId()
			if want := "The command keeps running: `agbox logs -f " + id + "` shows its output, `agbox kill " + id + "` ends it."; code != 143 || !strings.Contains(c.errs.String(), want) {
				t.Errorf("code %d, stderr %q, want 143 and %q", code, c.errs.String(), want)
			}
			if fmt.Sprint(d.signals) != "[15]" || d.execs[0].GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING {
				t.Errorf("the command got %v and is %v, want one signal and that it runs", d.signals, d.execs[0].GetState())
			}
		})
	}
}

func TestASIGTERMAfterCtrlCIsPassedOn(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	c := newCLI(t, socket)
	c.out.wrote = func() { c.signals <- syscall.SIGINT }
	var sent sync.WaitGroup
	defer sent.Wait()
	sent.Go(func() {
		d.await(t, func() bool { return len(d.signals) == 1 })
		c.signals <- syscall.SIGTERM
	})
	if code := c.exec(t.Context(), "exec", "demo", "wait", "patient"); code != 143 || fmt.Sprint(d.signals) != "[2 15]" {
		t.Errorf("code %d, the command got %v", code, d.signals)
	}
}

func TestACommandWhoseReaderIsGoneGetsSIGPIPE(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	c := newCLI(t, socket)
	c.stdout = failing{}
	if code := c.exec(t.Context(), "exec", "demo", "wait"); code != 141 || fmt.Sprint(d.signals) != "[13]" {
		t.Errorf("code %d, signals %v", code, d.signals)
	}
}

func TestOutputThatCannotBeWrittenIsNoSuccess(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	for command, want := range map[string]int{"say hello": codeExecAgbox, "wait": codeExecAgbox} {
		c := newCLI(t, socket)
		c.stdout = fullDisk{}
		code := c.exec(t.Context(), append([]string{"exec", "demo"}, strings.Fields(command)...)...)
		if code != want || strings.Count(c.errs.String(), "no space left") != 1 || !strings.Contains(c.errs.String(), "agbox logs ") {
			t.Errorf("%s: code %d, %q", command, code, c.errs.String())
		}
	}
}

func TestLogsEndWithZeroWhateverTheCommandDid(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	agbox(t, socket, "exec", "--name", "talk", "demo", "say", "x")
	code, out, errs := agbox(t, socket, "logs", "-f", "talk")
	if code != 0 || out != "x\n" || errs != "aside\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
	agbox(t, socket, "exec", "-d", "--name", "job", "demo", "wait")
	c := newCLI(t, socket)
	c.out.wrote = func() {
		if code, _, errs := agbox(t, socket, "kill", "job"); code != 0 {
			t.Errorf("kill: code %d, %s", code, errs)
		}
	}
	if code := c.exec(t.Context(), "logs", "-f", "job"); code != 0 || c.out.String() != "waiting\n" {
		t.Errorf("code %d, stdout %q", code, c.out.String())
	}
	if code, _, _ := agbox(t, socket, "kill", "-s", "sigint", "job"); code != 0 || !slices.Equal(d.signals, []int32{2}) {
		t.Errorf("kill -s: code %d, signals %v", code, d.signals)
	}
	if code, _, errs := agbox(t, socket, "kill", "talk"); code != 0 || !strings.HasSuffix(errs, "has ended.\n") {
		t.Errorf("kill of an ended command: code %d, stderr %q", code, errs)
	}
}

func TestCtrlCEndsAFollowAndNotTheCommand(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	agbox(t, socket, "exec", "-d", "--name", "job", "demo", "wait")
	c := newCLI(t, socket)
	c.out.wrote = func() { c.signals <- syscall.SIGINT }
	if code := c.exec(t.Context(), "logs", "-f", "job"); code != 130 || c.errs.String() != "" || len(d.signals) != 0 {
		t.Errorf("code %d, stderr %q, signals %v", code, c.errs.String(), d.signals)
	}
}

func TestStopStartAndRmWaitForTheEnd(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "one", "--image", "good", "--id", "id1", "--label", "k=v")
	agbox(t, socket, "create", "two", "--image", "good", "--id", "id2")
	agbox(t, socket, "create", "three", "--image", "good", "--id", "id3", "--label", "k=v")
	for _, tt := range []struct {
		line string
		code int
		out  string
		last agboxv1.SandboxState
	}{
		{"stop one", 0, "id1\n", agboxv1.SandboxState_SANDBOX_STATE_STOPPED},
		{"start one", 0, "id1\n", agboxv1.SandboxState_SANDBOX_STATE_READY},
		{"rm none one", 3, "id1\n", agboxv1.SandboxState_SANDBOX_STATE_DELETED},
		{"rm -f none one", 0, "", agboxv1.SandboxState_SANDBOX_STATE_DELETED},
		{"rm --label k=v two", 0, "id2\nid3\n", agboxv1.SandboxState_SANDBOX_STATE_DELETED},
		{"rm --label k=v", 0, "", agboxv1.SandboxState_SANDBOX_STATE_DELETED},
	} {
		code, out, errs := agbox(t, socket, strings.Fields(tt.line)...)
		if code != tt.code || out != tt.out || d.boxes[0].GetState() != tt.last {
			t.Errorf("%q: code %d, stdout %q, stderr %q, state %v", tt.line, code, out, errs, d.boxes[0].GetState())
		}
	}
	if _, out, _ := agbox(t, socket, "ls", "-q", "--deleted"); out != "id1\nid2\nid3\n" {
		t.Errorf("ls --deleted gives %q", out)
	}
	if _, out, _ := agbox(t, socket, "ls", "-q", "-a"); out != "" {
		t.Errorf("ls -a gives %q, which is deleted", out)
	}
}

func TestInspectSaysWhenThereIsNeither(t *testing.T) {
	_, socket := serveScripted(t)
	code, out, errs := agbox(t, socket, "inspect", "none")
	if code != 3 || out != "" || !strings.Contains(errs, "No sandbox or command is named none") {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
}

func TestFollowedEventsEndWithTheSandbox(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	c := newCLI(t, socket)
	c.out.wrote = sync.OnceFunc(func() {
		if code, _, errs := agbox(t, socket, "rm", "demo"); code != 0 {
			t.Errorf("rm: code %d, %s", code, errs)
		}
	})
	code := c.exec(t.Context(), "events", "-f", "demo")
	if lines := strings.Count(c.out.String(), "\n"); code != 0 || lines != 6 || !strings.Contains(c.out.String(), "SANDBOX_DELETED") {
		t.Errorf("code %d, %d lines:\n%s", code, lines, c.out.String())
	}
}

func TestDaemonRunBecomesTheDaemon(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "agboxd")
	for _, program := range []string{binary, filepath.Join(dir, "agbox-init")} {
		if err := os.WriteFile(program, []byte("#!/bin/true\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	c := newCLI(t, "")
	var path string
	var argv []string
	c.replace = func(p string, a, _ []string) error { path, argv = p, a; return nil }
	if code := c.exec(t.Context(), "daemon", "run"); code != 0 || path != binary || fmt.Sprint(argv) != "[agboxd run]" {
		t.Errorf("code %d, %s %v, stderr %q", code, path, argv, c.errs.String())
	}
}

func TestTheSocketOfTheDaemonCannotBeChosenByFlag(t *testing.T) {
	for _, verb := range []string{"start", "run"} {
		if code, _, errs := agbox(t, "", "--socket", "/tmp/x.sock", "daemon", verb); code != 2 || !strings.Contains(errs, "AGBOX_HOME") {
			t.Errorf("%s: code %d, %q", verb, code, errs)
		}
	}
}

func TestASecondContextEndDoesNotHang(t *testing.T) {
	_, socket := serveScripted(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := newCLI(t, socket).exec(ctx, "ls"); code == 0 {
		t.Error("a command whose context is over succeeded")
	}
}
