package journal

import (
	"strings"
	"testing"
)

func TestCallsAreCounted(t *testing.T) {
	s := Start()
	for _, r := range []Row{
		{Phase: Begin, Kind: LLM, Invocation: "1"}, {Phase: End, Kind: LLM, Invocation: "1"},
		{Phase: Begin, Kind: Tool, Invocation: "2", Name: "git_clone"}, {Phase: Aborted, Kind: Tool, Invocation: "2", Name: "git_clone", Reason: "TOOL_TIMEOUT"},
		{Phase: Begin, Kind: Tool, Invocation: "3", Name: "file_read"}, {Phase: Begin, Kind: Network, Invocation: "4"},
	} {
		r.Op = Call
		next, err := s.Next(r)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		s = next
	}
	if s.Rows != 6 || s.LLMCalls != 1 || s.ToolCalls != 2 || s.LastTool != "file_read" {
		t.Errorf("%+v", s)
	}
}

func TestCallsThatAreRefused(t *testing.T) {
	good := Row{Op: Call, Phase: Begin, Kind: Tool, Invocation: "1", Name: "x"}
	for name, change := range map[string]func(*Row){
		"phase":      func(r *Row) { r.Phase = "progress" },
		"kind":       func(r *Row) { r.Kind = "disk" },
		"no id":      func(r *Row) { r.Invocation = "" },
		"a long id":  func(r *Row) { r.Invocation = strings.Repeat("x", MaxInvocation+1) },
		"an id":      func(r *Row) { r.Invocation = "\x1b" },
		"name":       func(r *Row) { r.Name = strings.Repeat("x", MaxName+1) },
		"a bad name": func(r *Row) { r.Name = "\xff" },
		"reason":     func(r *Row) { r.Reason = strings.Repeat("x", MaxText+1) },
	} {
		r := good
		change(&r)
		if s, err := Start().Next(r); err == nil || s != Start() {
			t.Errorf("%s: %+v, %v; want a refusal", name, s, err)
		}
	}
}
