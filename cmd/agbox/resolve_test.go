package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAScriptThatChangesSomethingGivesAWholeIDOrAName: with rm -f, what does not exist is no error.
func TestAScriptThatChangesSomethingGivesAWholeIDOrAName(t *testing.T) {
	_, socket := serveScripted(t)
	for _, id := range []string{"job-10", "job-20"} {
		if code, _, errs := agbox(t, socket, "create", "--id", id, "box-"+id, "--image", "good"); code != 0 {
			t.Fatal(errs)
		}
	}
	if code, _, errs := agbox(t, socket, "exec", "-d", "--name", "build", "box-job-10", "wait"); code != 0 {
		t.Fatal(errs)
	}
	for _, args := range [][]string{
		{"rm", "-f", "job-1"}, {"stop", "job-1"}, {"start", "job-1"}, {"restart", "job-1"}, {"rename", "job-1", "other"},
		{"exec", "job-1", "exit", "0"}, {"kill", "job-1"}, {"cp", "resolve.go", "job-1:/"}, {"apply", "job-1"}, {"sync", "job-1"},
	} {
		code, out, errs := agbox(t, socket, args...)
		if (code == 0) != (args[0] == "rm") || out != "" || !strings.Contains(errs, "job-1 is the beginning of an id, that of sandbox job-10 (box-job-10). Without a terminal, a command that changes something takes only a whole id or a name: give job-10.") {
			t.Errorf("%v: code %d, %q, %q", args, code, out, errs)
		}
		args[len(args)-1] = strings.Replace(args[len(args)-1], "job-1", "job-", 1)
		if args[1] = strings.Replace(args[1], "job-1", "job-", 1); args[0] == "rm" {
			args[2] = "job-"
		}
		code, out, errs = agbox(t, socket, args...)
		if (code == 0) != (args[0] == "rm") || out != "" || !strings.Contains(errs, `"job-" fits several sandboxes: job-10 (box-job-10), job-20 (box-job-20). Give the whole id of the one that is meant.`) {
			t.Errorf("%v: code %d, %q, %q", args, code, out, errs)
		}
	}
	_, _, errs := agbox(t, socket, "rm", "-f", "job-1", "job-2")
	if strings.Count(errs, "Nothing was removed for job-") != 2 || !strings.Contains(errs, "give job-20. Nothing was removed for job-2.\n") {
		t.Errorf("rm -f of two: %q", errs)
	}
	if code, out, _ := agbox(t, socket, "rm", "job-1"); code == 0 || out != "" {
		t.Errorf("rm without -f: code %d, %q", code, out)
	}
	for _, args := range [][]string{{"inspect", "job-1"}, {"ps", "job-1"}, {"port", "job-1"}, {"events", "job-1"}, {"stop", "box-job-10"}, {"rm", "-f", "job-10"}} {
		if code, _, errs := agbox(t, socket, args...); code != 0 {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
	}
}

func TestAPersonIsShownWhatTheBeginningOfAnIDMeans(t *testing.T) {
	_, socket := serveScripted(t)
	for _, id := range []string{"job-10", "job-20"} {
		if code, _, errs := agbox(t, socket, "create", "--id", id, "box-"+id, "--image", "good"); code != 0 {
			t.Fatal(errs)
		}
	}
	const first = "job-1 is the beginning of an id, that of sandbox job-10 (box-job-10)."
	_, typed := backgroundTerminal(t)
	typing := func() *cli {
		c := newCLI(t, socket)
		c.app.stdin, c.app.width = typed, func() int { return 80 }
		return c
	}
	for _, c := range []struct{ args, shown []string }{
		{[]string{"inspect", "job-1"}, nil}, // changes nothing
		{[]string{"stop", "job-1"}, []string{first}},
		{[]string{"stop", "job-20"}, nil},
		{[]string{"start", "box-job-20"}, nil},
		{[]string{"rm", "-f", "job-1", "job-2"}, []string{first, "job-2 is the beginning of an id, that of sandbox job-20 (box-job-20)."}},
	} {
		cli := typing()
		code := cli.run(t.Context(), withSocket(socket, c.args))
		errs := cli.errs.String()
		if code != 0 || strings.Count(errs, "beginning of an id") != len(c.shown) {
			t.Errorf("%v: code %d, %q; want it to show %q", c.args, code, errs, c.shown)
		}
		for _, shown := range c.shown {
			if !strings.Contains(errs, "agbox: "+shown+"\n") {
				t.Errorf("%v: %q, want %q", c.args, errs, shown)
			}
		}
	}
	if _, out, _ := agbox(t, socket, "ls", "-q"); out != "" {
		t.Errorf("there is still %q", out)
	}
	cli, ended := typing(), []*agboxv1.Referent{{Id: "b", Name: "twice", Match: agboxv1.RefMatch_REF_MATCH_NEWEST}}
	got, err := cli.choose(ofAgent, "twice", &agboxv1.ResolveResponse{Referents: ended}, changes)
	if got != "b" || cli.errs.String() != "agbox: Several that have ended are called twice, and the newest is agent b (twice).\n" {
		t.Errorf("an ended agent: %q, %v, %q", got, err, cli.errs.String())
	}
}

func TestWhatATextMeansToACommand(t *testing.T) {
	ref := func(id string, match agboxv1.RefMatch) *agboxv1.Referent {
		return &agboxv1.Referent{Id: id, Match: match}
	}
	const id, name, newest, prefix = agboxv1.RefMatch_REF_MATCH_ID, agboxv1.RefMatch_REF_MATCH_NAME, agboxv1.RefMatch_REF_MATCH_NEWEST, agboxv1.RefMatch_REF_MATCH_PREFIX
	for _, c := range []struct {
		list            []*agboxv1.Referent
		reads, changing string
	}{
		{[]*agboxv1.Referent{ref("a", id)}, "a", "a"},
		{[]*agboxv1.Referent{ref("a", name)}, "a", "a"},
		{[]*agboxv1.Referent{ref("a", prefix)}, "a", ""},
		{[]*agboxv1.Referent{ref("a", newest)}, "a", ""},
		{[]*agboxv1.Referent{ref("deleted", id), ref("b", name)}, "deleted", ""},
		{[]*agboxv1.Referent{ref("a", name), ref("b", name)}, "", ""},
		{[]*agboxv1.Referent{ref("a", prefix), ref("b", prefix)}, "", ""},
	} {
		for to, want := range map[purpose]string{reads: c.reads, changes: c.changing} {
			got, err := newCLI(t, "").choose(ofAgent, "text", &agboxv1.ResolveResponse{Referents: c.list}, to)
			if got != want || (err == nil) != (want != "") {
				t.Errorf("%v is %q, %v; want %q", c.list, got, err, want)
			}
		}
	}
}

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
