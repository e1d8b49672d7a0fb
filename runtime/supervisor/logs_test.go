package supervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/guest/rpc"
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
	if got := b.statusFile("e"); got.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_RUNNING || !reflect.DeepEqual(got.GetRequest(), want) {
		t.Errorf("while it runs the status file holds %v", got)
	}
	ended := b.ends("e")
	b.typed(c, "e", 0, "go\n", true)
	if r := next(t, ended); r.GetExitCode() != 7 || r.GetRequest() != nil {
		t.Errorf("the report is %v", r)
	}
	if got := b.statusFile("e"); got.GetExitCode() != 7 || !reflect.DeepEqual(got.GetRequest(), want) {
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
		"words":  {append([]string{"true"}, slices.Repeat([]string{""}, 5000)...), rpc.MaxRecordedCommand/rpc.RecordedWord - 1, false},
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

// spares counts the open files of the supervisor in its log directory that have no name.
func (b *box) spares() int {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", b.cmd.Process.Pid))
	n := 0
	for _, link := range links {
		target, err := os.Readlink(link)
		if err == nil && strings.HasPrefix(target, filepath.Join(b.dir, "logs")+"/") && strings.HasSuffix(target, " (deleted)") {
			n++
		}
	}
	return n
}

func (b *box) logFiles() int {
	entries, err := os.ReadDir(filepath.Join(b.dir, "logs"))
	b.must(err)
	return len(entries)
}

func TestSpareFilesAreKeptReadyAndNeverSeen(t *testing.T) {
	const full, execs = 16, 6 // the execs need more than there are
	b := newBox(t)
	isFull := func() bool { return b.spares() == full }
	eventually(t, "the spares are there", isFull)
	if n := b.logFiles(); n != 0 {
		t.Errorf("%d files before any exec", n)
	}
	c, gate := b.dial(), b.fifo("gate")
	for i := range execs {
		b.start(c, sh(fmt.Sprint("e", i), "read x < "+gate.Name()+"; echo out"))
	}
	// They are also made again while the execs that took them still run.
	eventually(t, "there are enough spares for two", func() bool { return b.spares() >= full/2 })
	for range execs {
		if _, err := gate.WriteString("go\n"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range execs {
		id := fmt.Sprint("e", i)
		if r := b.end(id); r.GetExitCode() != 0 || b.stdout(id) != "out\n" {
			t.Errorf("%v, output %q", r, b.stdout(id))
		}
	}
	eventually(t, "the spares are there again", isFull)
	b.start(c, request("none", "no such command"))
	eventually(t, "it has taken files", func() bool { return b.logFiles() == 4*(execs+1) })
	eventually(t, "those of an exec without a process are there again", isFull)
	if n := b.logFiles(); n != 4*(execs+1) {
		t.Errorf("%d files of %d execs", n, execs+1)
	}
	b.stop()
	if n := b.logFiles(); n != 4*(execs+1) {
		t.Errorf("%d files of %d execs after the stop", n, execs+1)
	}
}

func TestLogsHaveNoValuesOfSecretVariables(t *testing.T) {
	b := newBox(t, func(_ *box, boot *guestv1.BootConfig) { boot.SecretEnvs = []string{"API_KEY"} })
	const script = `printf 'one canary-of-'; printf 'container two %s %s canary-o' "$OWN" "$SHORT"`
	for id, want := range map[string]string{
		"shared": "one *** two canary-of-command 1234567 canary-o",
		"own":    "one *** two *** 1234567 canary-o",
		"shown":  "one canary-of-container two canary-of-command 1234567 canary-o",
		"tty":    "one *** two *** 1234567 canary-o",
	} {
		req := sh(id, script)
		req.Env = []string{"OWN=canary-of-command", "SHORT=1234567"}
		if id != "shared" {
			req.SecretEnvs = []string{"OWN", "SHORT"}
		}
		req.ShowSecrets, req.Tty = id == "shown", id == "tty"
		record := b.run(req)
		if got := b.stdout(id); got != want || record.GetStdoutBytes() != uint64(len(want)) {
			t.Errorf("%s: %d bytes are recorded, and the log has %q; want %q", id, record.GetStdoutBytes(), got, want)
		}
	}
}
