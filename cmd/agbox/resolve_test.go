package main

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
		if code == 0 || out != "" || !strings.Contains(errs, "job-1 is the beginning of an id, that of sandbox job-10 (box-job-10). Without a terminal, a command that changes something takes only a whole id or a name: give job-10.") {
			t.Errorf("%v: code %d, %q, %q", args, code, out, errs)
		}
		args[len(args)-1] = strings.Replace(args[len(args)-1], "job-1", "job-", 1)
		if args[1] = strings.Replace(args[1], "job-1", "job-", 1); args[0] == "rm" {
			args[2] = "job-"
		}
		code, out, errs = agbox(t, socket, args...)
		if code == 0 || out != "" || !strings.Contains(errs, `"job-" fits several sandboxes: job-10 (box-job-10), job-20 (box-job-20). Give the whole id of the one that is meant.`) {
			t.Errorf("%v: code %d, %q, %q", args, code, out, errs)
		}
	}
	for _, args := range [][]string{{"inspect", "job-1"}, {"ps", "job-1"}, {"port", "job-1"}, {"events", "job-1"}, {"stop", "box-job-10"}, {"rm", "-f", "job-10"}} {
		if code, _, errs := agbox(t, socket, args...); code != 0 {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
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
