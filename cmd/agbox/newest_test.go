package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// serveCommands is a daemon with sandbox demo (box1), which ran old and then done, and
// runs job, and with the empty sandbox bare (box2). done was started last.
func serveCommands(t *testing.T) (*scripted, string) {
	t.Helper()
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--id", "box1", "--image", "good")
	agbox(t, socket, "create", "bare", "--id", "box2", "--image", "good")
	for i, args := range [][]string{{"old", "say", "an old word"}, {"job", "wait"}, {"done", "say", "the newest word"}} {
		agbox(t, socket, append([]string{"exec", "-d", "--name", args[0], "box1"}, args[1:]...)...)
		d.execs[i].ExecId = args[0] + "1"
		d.execs[i].StartedAt = timestamppb.New(theTime.Add(time.Duration(i) * time.Second))
	}
	return d, socket
}

func TestASandboxStandsForItsNewestCommand(t *testing.T) {
	_, socket := serveCommands(t)
	code, out, errs := agbox(t, socket, "logs", "--stdout", "demo")
	if code != 0 || !strings.HasPrefix(out, "the newest word\n") || errs != "agbox: demo is a sandbox. Its newest command is done1: say 'the newest word'\naside\n" {
		t.Errorf("logs: code %d, %q, %q", code, out, errs)
	}
	if code, out, errs := agbox(t, socket, "logs", "old"); code != 0 || !strings.HasPrefix(out, "an old word\n") || strings.Contains(errs, "is a sandbox") {
		t.Errorf("logs of a command: code %d, %q, %q", code, out, errs)
	}
	if code, out, errs := agbox(t, socket, "wait", "box1"); code != 0 || out != "0\n" || !strings.Contains(errs, "done1") {
		t.Errorf("wait: code %d, %q, %q", code, out, errs)
	}
	// Only running commands can be attached to.
	if code, _, errs := agbox(t, socket, "attach", "bare"); code != codeExecAgbox || !strings.Contains(errs, "Sandbox bare runs no command. `agbox shell`") {
		t.Errorf("attach: code %d, %q", code, errs)
	}
	if code, _, errs := agbox(t, socket, "logs", "bare"); code != codeNotFound || !strings.Contains(errs, "Sandbox bare has run no command.") {
		t.Errorf("logs of an empty sandbox: code %d, %q", code, errs)
	}
	if code, _, errs := agbox(t, socket, "logs", "nosuch"); code != codeNotFound ||
		errs != "agbox: There is neither a command nor a sandbox nosuch. Sandboxes (`agbox ls`): demo, bare. Running commands (`agbox ps`, with -a also ended ones): job.\n" {
		t.Errorf("logs of nothing: code %d, %q", code, errs)
	}
}

func TestAttachToASandboxTakesTheNewestRunningCommand(t *testing.T) {
	_, socket := serveCommands(t)
	c := newCLI(t, socket)
	conn, err := c.client()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	e, err := c.namedExec(t.Context(), conn, "demo", true, reads)
	if err != nil || e.GetExecId() != "job1" || !strings.Contains(c.errs.String(), "Its newest running command is job1: wait") {
		t.Errorf("%v, %v, %q", e, err, c.errs.String())
	}
}

func TestKillOfASandboxTakesTheNewestRunningCommand(t *testing.T) {
	d, socket := serveCommands(t)
	for _, args := range [][]string{{"kill", "-9", "demo"}, {"kill", "box1"}} {
		code, out, errs := agbox(t, socket, args...)
		if code != 0 || out != "" || !strings.Contains(errs, " is a sandbox. Its newest running command is job1: wait\n") {
			t.Errorf("%q: code %d, %q, %q", args, code, out, errs)
		}
		d.execs[1].State = agboxv1.ExecState_EXEC_STATE_RUNNING // so that there is something to kill again
	}
	if len(d.signals) == 0 || d.signals[0] != 9 || d.execs[0].GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED {
		t.Errorf("the signals are %v; the commands are %v", d.signals, d.execs)
	}
	if code, _, errs := agbox(t, socket, "kill", "bare", "nosuch"); code != codeNotFound ||
		!strings.Contains(errs, "Sandbox bare runs no command. `agbox shell` opens a shell in it, `agbox stop` stops it.") ||
		!strings.Contains(errs, "There is neither a command nor a sandbox nosuch.") {
		t.Errorf("nothing to kill: code %d, %q", code, errs)
	}
}

func TestWaitPrintsExitCodes(t *testing.T) {
	d, socket := serveCommands(t)
	for _, args := range [][]string{{"seven", "exit", "7"}, {"none", "nope"}, {"gone", "lost"}} {
		agbox(t, socket, append([]string{"exec", "-d", "--name", args[0], "box1"}, args[1:]...)...)
	}
	for words, want := range map[string]string{"seven": "7\n", "seven old": "7\n0\n", "none": "127\n"} {
		if code, out, _ := agbox(t, socket, append([]string{"wait"}, strings.Fields(words)...)...); code != 0 || out != want {
			t.Errorf("%s: code %d, %q", words, code, out)
		}
	}
	if code, out, errs := agbox(t, socket, "wait", "gone"); code == 0 || out != "125\n" || !strings.Contains(errs, "went away") {
		t.Errorf("a lost one: code %d, %q, %q", code, out, errs)
	}
	// It waits for a command that runs.
	c := newCLI(t, socket)
	ended := make(chan int)
	go func() { ended <- c.exec(t.Context(), "wait", "job") }()
	if code, _, errs := agbox(t, socket, "kill", "-INT", "job"); code != 0 {
		t.Errorf("kill: %q", errs)
	}
	if code := <-ended; code != 0 || c.out.String() != "130\n" {
		t.Errorf("code %d, %q, %q; state %v", code, c.out.String(), c.errs.String(), d.execs[1].GetState())
	}
}
