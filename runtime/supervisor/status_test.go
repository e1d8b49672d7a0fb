package supervisor_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/guest/wire"
)

func TestStatusFilesKeepTheRequestForADaemonThatLostItsDatabase(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	c := b.dial()
	req := &guestv1.StartRequest{
		ExecId: "e", Command: []string{"sh", "-c", "read line; exit 7"}, User: "me", Cwd: b.dir, Name: "build",
		Env: []string{"TOKEN=secret"}, Stdin: true, TimeoutMs: 3_600_000, IdleTimeoutMs: 1_800_000, GraceMs: 5, MaxLogBytes: 1 << 20,
	}
	want := &guestv1.RecordedRequest{
		Command: req.GetCommand(), User: "me", Cwd: b.dir, Name: "build",
		Stdin: true, TimeoutMs: 3_600_000, IdleTimeoutMs: 1_800_000, MaxLogBytes: 1 << 20,
	}
	if r := b.start(c, req); r.GetRequest() != nil {
		t.Errorf("the answer to a start holds the request: %v", r)
	}
	if got := b.statusFile("e"); got.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_RUNNING || !proto.Equal(got.GetRequest(), want) {
		t.Errorf("while it runs the status file holds %v", got)
	}
	ended := b.ends("e")
	b.typed(c, "e", 0, "go\n", true)
	if r := next(t, ended); r.GetExitCode() != 7 || r.GetRequest() != nil {
		t.Errorf("the report is %v", r)
	}
	if got := b.statusFile("e"); got.GetExitCode() != 7 || !proto.Equal(got.GetRequest(), want) {
		t.Errorf("after its end the status file holds %v", got)
	}
	b.run(request("none", "/no/such/program", "x"))
	if got := b.statusFile("none"); got.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_FAILED || !slices.Equal(got.GetRequest().GetCommand(), []string{"/no/such/program", "x"}) {
		t.Errorf("of a command that could not start the status file holds %v", got)
	}
}

func TestStatusFilesKeepNoMoreOfACommandThanTheLimit(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for id, c := range map[string]struct {
		command []string
		words   int
		cut     bool
	}{
		"script": {[]string{"true", strings.Repeat("é", 5000), "after"}, 2, true},
		"words":  {append([]string{"true"}, slices.Repeat([]string{""}, 5000)...), wire.MaxRecordedCommand/wire.RecordedWord - 1, false},
		"fits":   {[]string{"true", strings.Repeat("x", 4000)}, 2, false},
	} {
		b.run(request(id, c.command...))
		got := b.statusFile(id)
		words := got.GetRequest().GetCommand()
		last := words[len(words)-1]
		if len(words) != c.words || strings.HasSuffix(last, "…") != c.cut || !utf8.ValidString(last) {
			t.Errorf("%s: %d words, the last is %q", id, len(words), last)
		}
		if err := guest.CheckRecord(got); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
