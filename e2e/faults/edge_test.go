package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAThousandStreamsAndAFloodOfRequestsLeaveTheRestUsable(t *testing.T) {
	t.Parallel()
	const streams, callers = 1000, 32
	row := Row(t, 42, "1,000 streams and a request flood", 1)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	j := job{id: "followed", box: box, lines: 400, code: 6, every: 20, pause: 200 * time.Millisecond}
	if err := w.start(harness.Bounded(t), j); err != nil {
		t.Fatal(err)
	}
	stdout, stderr := j.output()
	ctx, giveUp := context.WithCancel(t.Context()) // the test's end bounds it
	defer giveUp()
	var following sync.WaitGroup
	var wrong atomic.Int64
	for range streams {
		following.Go(func() {
			n := 0
			for item, err := range w.c.FollowLogs(ctx, j.id, client.LogOptions{Follow: true}) {
				if err != nil {
					wrong.Add(1)
					return
				}
				n += len(item.Data)
			}
			if n != len(stdout)+len(stderr) {
				wrong.Add(1)
			}
		})
	}
	flooding, calm := context.WithCancel(ctx)
	defer calm()
	flood := w.in.Client(t)
	var flooded sync.WaitGroup
	var calls, failed atomic.Int64
	for range callers {
		flooded.Go(func() {
			for flooding.Err() == nil {
				if _, err := flood.ListSandboxes(ctx, client.ListOptions{}); err != nil {
					failed.Add(1)
				}
				calls.Add(1)
			}
		})
	}
	// Nor are other clients' commands blocked.
	for range 5 {
		w.finished(t, box)
	}
	var took []time.Duration
	for range 20 {
		began := time.Now()
		w.in.Must(t, "ls")
		took = append(took, time.Since(began))
	}
	calm()
	bound := time.AfterFunc(harness.Patience, giveUp)
	defer bound.Stop()
	flooded.Wait()
	following.Wait()
	slices.Sort(took)
	row.Note("'agbox ls' as a process among %d streams and %d calls: p50 %v, slowest %v", streams, calls.Load(),
		took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	if wrong.Load() != 0 || failed.Load() != 0 {
		t.Errorf("%d streams and %d calls failed", wrong.Load(), failed.Load())
	}
	w.check(t)
}

func TestNoiseOnTheSocketHurtsNobody(t *testing.T) {
	t.Parallel()
	const times = 300
	row := Row(t, 43, "noise, broken HTTP/2 and broken protobuf on the daemon's socket", times)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	pid := w.in.Status(t).PID
	open := descriptors(t, pid)
	random := rand.New(rand.NewPCG(43, 1))
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for i := range times {
		conn, err := net.Dial("unix", w.in.Socket())
		if err != nil {
			t.Fatal(err)
		}
		noise := make([]byte, 1+random.IntN(4096))
		for k := range noise {
			noise[k] = byte(random.Uint32())
		}
		if i%3 != 0 { // past the first check
			noise = append([]byte(preface), noise...)
		}
		_, _ = conn.Write(noise)
		if i%2 == 0 { // wait until the other side closes
			_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, _ = conn.Read(noise)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// It opens some temporarily, for example to the engine.
	harness.Eventually(t, "the daemon has let go of all connections", func() bool { return descriptors(t, pid) <= open+times/10 })
	if now := w.in.Status(t).PID; now != pid {
		t.Errorf("the daemon was %d and is %d", pid, now)
	}
	row.Note("descriptors before %d, after %d; what is decoded is fuzzed in daemon/server", open, descriptors(t, pid))
	w.finished(t, box)
	w.check(t)
}

// descriptors counts the open files of a process.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestSandboxFilesThatAreBombsOrWrongAreRefusedWithTheLine(t *testing.T) {
	t.Parallel()
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	files := map[string]struct {
		yaml string
		// line is in the message.
		line string
	}{
		"aliases of aliases": {bomb.String() + "image: *a11\n", ""},
		"an unknown key":     {"image: busybox\nimmage: x\n", "2"},
		"a wrong type":       {"image: busybox\nlabels: 7\n", "2"},
		"a list for a text":  {"\n\nimage: [a, b]\n", "3"},
		"no YAML":            {"image: busybox\n\t: : :\n", "2"},
		"deep lists":         {"image: " + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), ""},
		"deep maps":          {"labels: " + strings.Repeat("{a: ", 20_000) + strings.Repeat("}", 20_000), ""},
		"more than 1 MiB":    {"image: " + strings.Repeat("x", 1<<20) + "\n", ""},
		"two documents":      {"image: a\n---\nimage: b\n", ""},
		"a huge number":      {"image: busybox\nidle_ttl: 99999999999999999999s\n", ""},
		"nothing":            {"\n", ""},
	}
	row := Row(t, 44, "YAML bombs, unknown keys, wrong types, deep nesting, too long", len(files))
	w := newWitness(t, harness.New(t))
	slowest := time.Duration(0)
	for name, file := range files {
		began := time.Now()
		_, err := w.c.CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{ConfigYaml: []byte(file.yaml)})
		slowest = max(slowest, time.Since(began))
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), file.line) || len(err.Error()) > 4096 {
			t.Errorf("%s: %.300v (%v), want it refused with the line", name, err, status.Code(err))
		}
	}
	row.Note("slowest answer %v; the daemon takes %d MiB", slowest.Round(time.Millisecond), residentKiB(t, w.in.Status(t).PID)>>10)
	w.check(t)
}

func TestIdsThatAreNoneAreRefusedAtTheEdge(t *testing.T) {
	t.Parallel()
	bad := []string{
		"../x", "..", ".", "a/b/c", "/etc/passwd", "a\x00b", strings.Repeat("a", 4096), strings.Repeat("a", 201), "-rf", " ", "a b", "а", // Cyrillic
		"аgbox", "ａｂｃ", "a\u202eb", "a\u0301", "\xff\xfe", "a\n", "%2e%2e", "~", "$HOME", "a;b", "*",
	}
	Row(t, 45, "ids like ../x, NUL, 4 KB, look-alike Unicode", len(bad))
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	before := tree(t, w.in.Home)
	for _, id := range bad {
		ctx := harness.Bounded(t)
		calls := map[string]error{}
		_, calls["CreateSandbox"] = w.c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{SandboxId: id, CreateSpec: &agboxv1.CreateSpec{Image: harness.ImageBusybox}})
		_, calls["CreateExec"] = w.c.CreateExec(ctx, &agboxv1.CreateExecRequest{SandboxId: box, ExecId: id, Command: []string{"true"}})
		_, calls["CreateExec in"] = w.c.CreateExec(ctx, &agboxv1.CreateExecRequest{SandboxId: id, Command: []string{"true"}})
		_, calls["GetSandbox"] = w.c.GetSandbox(ctx, id)
		_, calls["GetExec"] = w.c.GetExec(ctx, id)
		calls["DeleteSandbox"] = w.c.DeleteSandbox(ctx, id)
		calls["StopSandbox"] = w.c.StopSandbox(ctx, id)
		calls["CancelExec"] = w.c.CancelExec(ctx, id, 0)
		for _, err := range w.c.FollowLogs(ctx, id, client.LogOptions{}) {
			calls["FollowExecLogs"] = err
		}
		for _, err := range w.c.Events(ctx, id, 0) {
			calls["SubscribeSandboxEvents"] = err
		}
		for call, err := range calls {
			// Invalid UTF-8 does not reach the daemon.
			if status.Code(err) != codes.InvalidArgument && (status.Code(err) != codes.Internal || id != "\xff\xfe") {
				t.Errorf("%s of %.40q: %v (%v), want INVALID_ARGUMENT", call, id, err, status.Code(err))
			}
		}
	}
	if after := tree(t, w.in.Home); after != before {
		t.Errorf("the folders of the install were\n%s\nand are\n%s", before, after)
	}
	w.check(t)
}

// tree lists the folders under a folder.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}

func TestACommandLineThatIsTooLongIsRefusedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	requests := map[string]*agboxv1.CreateExecRequest{
		"one argument over 128 KiB":        {Command: []string{"true", strings.Repeat("x", 128<<10)}},
		"one variable over 128 KiB":        {Command: []string{"true"}, EnvOverrides: map[string]string{"A": strings.Repeat("x", 128<<10)}},
		"many arguments, 3 MiB in all":     {Command: append([]string{"true"}, slices.Repeat([]string{strings.Repeat("x", 100_000)}, 31)...)},
		"a message over the server's 4 Mi": {Command: append([]string{"true"}, slices.Repeat([]string{strings.Repeat("x", 100_000)}, 60)...)},
		"100,000 arguments":                {Command: append([]string{"true"}, slices.Repeat([]string{"x"}, 100_000)...)},
	}
	Row(t, 46, "argv or env over the kernel's limit", len(requests))
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	out, err := w.c.GetSandbox(harness.Bounded(t), box)
	if err != nil {
		t.Fatal(err)
	}
	for name, request := range requests {
		request.SandboxId = box
		_, err := w.c.CreateExec(harness.Bounded(t), request)
		ok := status.Code(err) == codes.InvalidArgument || strings.Contains(name, "message") && status.Code(err) == codes.ResourceExhausted
		if !ok || len(err.Error()) > 1000 {
			t.Errorf("%s: %.300v (%v), want INVALID_ARGUMENT", name, err, status.Code(err))
		}
	}
	now, err := w.c.GetSandbox(harness.Bounded(t), box)
	if err != nil || now.GetSandbox().GetLastEventSequence() != out.GetSandbox().GetLastEventSequence() {
		t.Errorf("something was recorded: %v (%v)", now, err)
	}
	w.finished(t, box)
	w.check(t)
}
