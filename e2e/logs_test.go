package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// halved writes lines alternately to both outputs: a1, b2, a3, b4, and the other six when
// its gate is open.
const halved = `for i in 1 3 5 7 9; do echo a$i; echo b$((i+1)) >&2; while [ $i = 3 -a ! -e /var/log/agents-sandbox/gate ]; do usleep 10000; done; done`

func TestLogsShowTheChosenPartOfACommand(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", halved)
	// Lines that are read together have the same time. These two must not.
	harness.Eventually(t, "the fourth line is in the log", func() bool { return strings.Contains(in.Agbox(t, "logs", job).Stderr, "b4\n") })
	openGate(t, gateOf(in, box))
	in.Must(t, "logs", "-f", job)
	lines := stampedLines(t, in, job)
	// Between the fourth and the fifth line.
	middle := lines[3].Add(lines[4].Sub(lines[3]) / 2).UTC().Format(time.RFC3339Nano)
	for _, c := range []struct{ flags, stdout, stderr string }{
		{"", "a1 a3 a5 a7 a9", "b2 b4 b6 b8 b10"},
		{"-n 3", "a9", "b8 b10"},
		{"-n 0", "", ""},
		{"-n 100", "a1 a3 a5 a7 a9", "b2 b4 b6 b8 b10"},
		{"-n 2 --stdout", "a7 a9", ""},
		{"-n 2 --stderr", "", "b8 b10"},
		{"--stdout", "a1 a3 a5 a7 a9", ""},
		{"--stdout --stderr", "a1 a3 a5 a7 a9", "b2 b4 b6 b8 b10"},
		{"--since " + middle, "a5 a7 a9", "b6 b8 b10"},
		{"--until " + middle, "a1 a3", "b2 b4"},
		{"--until " + middle + " -n 1", "", "b4"},
		{"--since " + middle + " --stderr -n 2", "", "b8 b10"},
		{"--since 1h", "a1 a3 a5 a7 a9", "b2 b4 b6 b8 b10"},
		{"--until 1h", "", ""},
		{"--since 2100-01-01", "", ""},
		{"-f --until " + middle, "a1 a3", "b2 b4"},
	} {
		args := append([]string{"logs"}, strings.Fields(c.flags)...)
		got := in.Agbox(t, append(args, job)...).Want(t, 0)
		for _, side := range []struct{ what, got, want string }{{"stdout", got.Stdout, c.stdout}, {"stderr", got.Stderr, c.stderr}} {
			if words := strings.Join(strings.Fields(side.got), " "); words != side.want {
				t.Errorf("logs %s: %s is %q, want %q", c.flags, side.what, words, side.want)
			}
		}
	}
	refused(t, in.Agbox(t, "logs", "--since", "soon", job), 2, "is not a time")
	refused(t, in.Agbox(t, "logs", "-n", "-1", job), 2, "number of lines")
	refused(t, in.Agbox(t, "logs"), 3, "has no sandbox")
}

// stampedLines returns the times that logs -t shows, of both outputs in order.
func stampedLines(t *testing.T, in *install, job string) []time.Time {
	t.Helper()
	r := in.Agbox(t, "logs", "-t", job).Want(t, 0)
	var times []time.Time
	for line := range strings.Lines(r.Stdout + r.Stderr) {
		stamp, text, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || !regexp.MustCompile(`^[ab]\d+\n$`).MatchString(text) {
			t.Fatalf("logs -t shows %q", line)
		}
		times = append(times, at)
	}
	slices.SortFunc(times, time.Time.Compare)
	if len(times) != 10 {
		t.Fatalf("%d lines", len(times))
	}
	return times
}

func TestLogsPassBytesUnchangedUnlessAskedToStripThem(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	const raw = "\x00\xff\x1b[31mred\x1b[0m\r\x1b]0;title\a no end"
	job := in.Must(t, "exec", "-d", "demo", "--", "printf", `\000\377\033[31mred\033[0m\r\033]0;title\007 no end`)
	in.Agbox(t, "logs", "-f", job).Want(t, 0).WantOutput(t, raw, "")
	in.Agbox(t, "logs", "--strip-ansi", job).Want(t, 0).WantOutput(t, "\x00\xffred\r no end", "")
	var piece struct {
		ExecID string    `json:"exec_id"`
		Stream string    `json:"stream"`
		Time   time.Time `json:"time"`
		Base64 string    `json:"data_base64"`
	}
	first, end, _ := strings.Cut(in.Must(t, "logs", "-o", "json", job), "\n")
	if err := json.Unmarshal([]byte(first), &piece); err != nil {
		t.Fatal(err)
	}
	data, _ := base64.StdEncoding.DecodeString(piece.Base64)
	if string(data) != raw || piece.ExecID != job || piece.Stream != "stdout" || piece.Time.IsZero() || !strings.Contains(end, `"end":`) {
		t.Errorf("-o json gives %s and %s", first, end)
	}
}

// The last lines of a log of many pieces come at once, and new ones after them.
func TestATailGoesOnLiveAcrossAKill(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c",
		`i=1; while [ $i -le 20000 ]; do echo line $i; i=$((i+1)); done; while [ ! -e /var/log/agents-sandbox/gate ]; do usleep 10000; done; echo last; echo error >&2; exit 3`)
	in.Start(t, "logs", "-f", job).AwaitOutput(t, "line 20000\n")
	tail := in.Start(t, "logs", "-f", "-n", "2", job)
	tail.AwaitOutput(t, "line 20000\n")
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	openGate(t, gateOf(in, box))
	tail.Wait(t).Want(t, 0).WantOutput(t, "line 19999\nline 20000\nlast\n", "error\n")
}

func TestTheLogsOfASandboxAreThoseOfItsCommands(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	in.Must(t, "exec", "--name", "one", "demo", "--", "sh", "-c", "echo first; echo error >&2")
	running := in.Must(t, "exec", "-d", "--name", "two", "demo", "--", "sh", "-c", "echo second; exec sleep 1000")
	in.Start(t, "logs", "-f", running).AwaitOutput(t, "second\n")
	in.Agbox(t, "logs", "--sandbox", "demo").Want(t, 0).
		WantOutput(t, "one | first\ntwo | second\n", "one | error\n")

	follower := in.Start(t, "logs", "-f", "--sandbox", "demo")
	follower.AwaitOutput(t, "two | second\n")
	in.Must(t, "exec", "--name", "three", "demo", "--", "echo", "third")
	follower.AwaitOutput(t, "three | third\n")
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	in.Must(t, "exec", "demo", "--", "echo", "fourth")
	follower.AwaitOutput(t, "echo fourth | fourth\n")
	in.Must(t, "rm", "-f", "demo")
	if got := follower.Wait(t).Want(t, 0).Stdout; strings.Contains(got, "first") || strings.Count(got, "\n") != 3 {
		t.Errorf("the follower showed %q", got)
	}
}

// More commands run than streams are opened, and all of them write.
func TestTheLogsOfManyCommandsAreWholeAcrossAKill(t *testing.T) {
	t.Parallel()
	const commands, lines = 100, 20
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	c := in.Client(t)
	script := fmt.Sprintf(`echo 0; while [ ! -e /var/log/agents-sandbox/gate ]; do usleep 100000; done; for i in $(seq %d); do echo $i; usleep 50000; done`, lines)
	for i := range commands {
		if _, err := c.CreateExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: box, Name: fmt.Sprint("c", i), Command: []string{"sh", "-c", script}}); err != nil {
			t.Fatal(err)
		}
	}
	got, ended := make(map[string]string), 0
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	var opened, kill sync.Once
	var killed sync.WaitGroup
	defer killed.Wait()
	for item, err := range c.FollowSandboxLogs(ctx, box, client.SandboxLogOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got[item.Exec.GetName()] += string(item.Data)
		// Only now is it certain that no command ends before the follower knows it.
		opened.Do(func() { openGate(t, gateOf(in, box)) })
		if strings.Contains(string(item.Data), "1\n") {
			kill.Do(func() {
				in.KillDaemon(t)
				killed.Go(func() { _ = in.Command(ctx, "agbox", "daemon", "start").Run() })
			})
		}
		if item.End != nil {
			if ended++; ended == commands {
				break
			}
		}
	}
	want := "0\n"
	for i := range lines {
		want += fmt.Sprintln(i + 1)
	}
	for i := range commands {
		harness.WantSame(t, fmt.Sprint("c", i), got[fmt.Sprint("c", i)], want)
	}
}
