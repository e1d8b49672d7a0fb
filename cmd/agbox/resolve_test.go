package main

import (
	"strings"
	"testing"

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
