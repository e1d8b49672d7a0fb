package faults

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// limit changes the limits of a sandbox's container, as its owner may with the
// engine's own tools.
func (w *witness) limit(t *testing.T, box string, r container.Resources) {
	t.Helper()
	if _, err := harness.DockerAPI.ContainerUpdate(harness.Bounded(t), w.primary(t, box), container.UpdateConfig{Resources: r}); err != nil {
		t.Fatal(err)
	}
}

func TestACommandThatRunsOutOfMemorySaysSoAndItsSandboxLives(t *testing.T) {
	t.Parallel()
	const times = 3
	row := Row(t, 24, "exec killed by the OOM killer", times)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	pid := w.pidInside(t, box)
	w.limit(t, box, container.Resources{Memory: 64 << 20, MemorySwap: 64 << 20})
	bystander := job{id: "bystander", box: box, lines: 300, code: 4, every: 10, pause: 20 * time.Millisecond}
	if err := w.start(harness.Bounded(t), bystander); err != nil {
		t.Fatal(err)
	}
	said := ""
	for range times {
		id := ids.New()
		w.in.Agbox(t, "exec", box, "--", "tail", "/dev/zero").Want(t, 137)
		w.in.Must(t, "exec", "-d", box, "--", "true")
		if _, err := w.c.CreateExec(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, ExecId: id, Command: []string{"tail", "/dev/zero"}}); err != nil {
			t.Fatal(err)
		}
		for _, err := range w.c.FollowLogs(harness.Bounded(t), id, client.LogOptions{Follow: true}) {
			if err != nil {
				t.Fatal(err)
			}
		}
		e, err := w.c.GetExec(harness.Bounded(t), id)
		if err != nil || e.GetExitCode() != 137 || e.GetSignal() != 9 || !strings.Contains(e.GetError(), "memory") {
			t.Errorf("the exec is %v (%v), want it killed for want of memory", e, err)
		}
		said = e.GetError()
	}
	row.Note("%s", said)
	if now := w.pidInside(t, box); now != pid {
		t.Errorf("the supervisor was %d and is %d", pid, now)
	}
	w.excuse(t, bystander, 2*times)
	w.check(t)
}

// excuse waits for the end of a job. If the kernel counts more kills for want of memory than were
// provoked, it has chosen the job too, as it may while the memory of the one before is still being
// freed. Then the job has to say so, and all that it wrote is there.
func (w *witness) excuse(t *testing.T, j job, provoked int) {
	t.Helper()
	var got [3]bytes.Buffer
	for item, err := range w.c.FollowLogs(harness.Bounded(t), j.id, client.LogOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got[item.Stream].Write(item.Data)
	}
	counted := w.in.Must(t, "exec", j.box, "--", "sh", "-c", "cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2>/dev/null || true")
	kills := -1
	for line := range strings.Lines(counted) {
		_, _ = fmt.Sscanf(line, "oom_kill %d", &kills)
	}
	if kills < provoked {
		t.Errorf("the kernel counts %d kills of %d: %q", kills, provoked, counted)
	}
	if kills <= provoked {
		return
	}
	e, err := w.c.GetExec(harness.Bounded(t), j.id)
	stdout, stderr := j.output()
	if err != nil || e.GetExitCode() != 137 || !strings.Contains(e.GetError(), "memory") ||
		!bytes.HasPrefix(stdout, got[agboxv1.LogStream_LOG_STREAM_STDOUT].Bytes()) || !bytes.HasPrefix(stderr, got[agboxv1.LogStream_LOG_STREAM_STDERR].Bytes()) {
		t.Errorf("the kernel killed %d processes, and the other exec is %v (%v)", kills, e, err)
	}
	w.mu.Lock()
	delete(w.execs, j.id)
	w.mu.Unlock()
}

// forkBomb is a shell that starts processes forever. It would end at the first refused
// fork; the trap reports that and starts again in the same process.
const forkBomb = `trap 'echo >/var/log/agents-sandbox/full; exec sh -c "$0" "$0"' EXIT; while :; do sleep 1000 >/dev/null 2>&1 & done`

func TestAForkBombHitsItsLimitAndCanBeEnded(t *testing.T) {
	t.Parallel()
	row := Row(t, 26, "fork bomb at the PID limit", 1)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	pid := w.pidInside(t, box)
	limit := int64(200) // the default would only take longer to reach
	w.limit(t, box, container.Resources{PidsLimit: &limit})
	bomb := w.in.Must(t, "exec", "-d", box, "--", "sh", "-c", forkBomb, forkBomb)
	harness.Eventually(t, "the bomb has reached the limit", func() bool {
		_, err := os.Stat(filepath.Join(w.logs(box), "full"))
		return err == nil
	})
	refused := ""
	harness.Eventually(t, "a new command is refused", func() bool {
		_, err := w.c.Run(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}}, io.Discard, io.Discard)
		if err != nil {
			refused = err.Error()
			if !errors.Is(err, client.ErrExhausted) {
				t.Errorf("a new command is refused as %v, want it to be RESOURCE_EXHAUSTED", status.Code(err))
			}
		}
		return err != nil
	})
	row.Note("%s", strings.TrimSpace(refused))
	if !strings.Contains(refused, "process limit") {
		t.Errorf("a new command is refused with %q", refused)
	}
	w.in.Must(t, "kill", "--grace", "1s", bomb)
	harness.Eventually(t, "the whole tree of the bomb is gone", func() bool { return len(processesOf(pid, "sleep")) == 0 })
	if now := w.pidInside(t, box); now != pid {
		t.Errorf("the supervisor was %d and is %d", pid, now)
	}
	w.finished(t, box)
	w.check(t)
}

func TestAGrandchildThatKeepsTheOutputOpenDelaysNobody(t *testing.T) {
	t.Parallel()
	Row(t, 27, "a grandchild keeps stdout open", 1)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	gate := filepath.Join(w.logs(box), "gate")
	// The grandchild must not end before the test has seen the status.
	ended := w.in.Agbox(t, "exec", box, "--", "sh", "-c",
		"echo first; (while [ ! -e /var/log/agents-sandbox/gate ]; do sleep 0.05; done; echo late; : >/var/log/agents-sandbox/wrote) & exit 5").Want(t, 5)
	if ended.Stdout != "first\n" {
		t.Errorf("stdout %q", ended.Stdout)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var id string
	for e, err := range w.c.ListExecs(harness.Bounded(t), box) {
		if err != nil {
			t.Fatal(err)
		}
		id = e.GetExecId()
	}
	harness.Eventually(t, "what came late is in the log", func() bool {
		return w.in.Must(t, "logs", id) == "first\nlate"
	})
	w.check(t)
}

func TestOrphansAndTheirTreesAreReapedAndStopped(t *testing.T) {
	t.Parallel()
	Row(t, 28, "double forks and zombies", 200)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	pid := w.pidInside(t, box)
	w.in.Must(t, "exec", box, "--", "sh", "-c", "for i in $(seq 200); do (sh -c 'sleep 0.01 &' &); done")
	harness.Eventually(t, "all orphans are reaped", func() bool {
		return len(processesOf(pid, "zombie"))+len(processesOf(pid, "sleep")) == 0
	})
	w.in.Must(t, "exec", "-d", box, "--", "sh", "-c", "setsid sh -c 'trap \"\" TERM; while :; do sleep 1001; done' & sleep 1001")
	harness.Eventually(t, "the tree runs", func() bool {
		return len(processesOf(pid, "sleep 1001")) > 0 || len(processesOf(pid, "sleep")) >= 2
	})
	var tree []int
	tree = append(tree, processesOf(pid, "sleep")...)
	w.in.Must(t, "stop", box)
	w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_STOPPED)
	for _, p := range tree {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", p)); err == nil {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
			t.Errorf("process %d (%q) outlives the stop", p, line)
		}
	}
	w.check(t)
}

func TestLogFilesTurnedIntoSomethingElseHurtNobody(t *testing.T) {
	t.Parallel()
	w := newWitness(t, harness.New(t))
	box, other := w.box(t), w.box(t)
	secret := filepath.Join(w.in.Home, "data", "install-id")
	tricks := map[string]string{
		"a symbolic link out":   "rm $F; ln -s " + secret + " $F",
		"a FIFO":                "rm $F; mkfifo $F",
		"a directory":           "rm $F; mkdir $F",
		"a hard link":           "rm $F; echo x >/var/log/agents-sandbox/twin.$$; ln /var/log/agents-sandbox/twin.$$ $F",
		"a sparse file of 8 T":  "rm $F; truncate -s 8T $F",
		"a link to a device":    "rm $F; ln -s /dev/zero $F",
		"longer than the index": "head -c 100000 /dev/zero >>$F",
		"empty":                 ": >$F",
	}
	Row(t, 38, "log file turned into a link, FIFO, directory, hard link, device link, sparse file, ...", 3*len(tricks))
	for name, trick := range tricks {
		for _, suffix := range []string{".stdout.log", ".index", ".status"} {
			id := ids.New()
			w.in.Must(t, "exec", box, "--", "true")
			if _, err := w.c.Run(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, ExecId: id, Command: []string{"echo", "out"}}, io.Discard, io.Discard); err != nil {
				t.Fatal(err)
			}
			w.in.Agbox(t, "exec", box, "--", "sh", "-c", "F=/var/log/agents-sandbox/"+id+suffix+"; "+trick)
			for _, more := range [][]string{{"logs", id}, {"logs", "-f", id}, {"inspect", id}} {
				// It ends soon, with one of the documented codes.
				r := w.in.Agbox(t, more...)
				if strings.Contains(r.Stdout, w.in.Status(t).InstallID) {
					t.Errorf("%s as %s: a file of the host is shown", suffix, name)
				}
				if r.Code != 0 && !strings.HasPrefix(r.Stderr, "agbox: ") {
					t.Errorf("%s as %s: %v ends with %d and %q", suffix, name, more, r.Code, r.Stderr)
				}
			}
		}
		w.finished(t, box)
		w.finished(t, other)
	}
	w.kill(t)
	w.in.Must(t, "daemon", "start")
	w.finished(t, box)
	w.check(t)
}

func TestASupervisorSocketThatLeadsElsewhereIsNotFollowed(t *testing.T) {
	t.Parallel()
	engine := strings.TrimPrefix(harness.DockerAPI.DaemonHost(), "unix://")
	row := Row(t, 39, "supervisor's socket turned into a link to the engine's, a plain file, or the socket of another process", 3)
	w := newWitness(t, harness.New(t))
	box, other := w.box(t, "--image", harness.ImageDebian), w.box(t)
	const listen = `exec perl -MSocket -e '$|=1; socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un("/.agbox/link/guest.sock")); listen(S, 9); print "listens\n"; sleep 1000'`
	for _, trick := range []string{"ln -s " + engine + " /.agbox/link/guest.sock", "echo >/.agbox/link/guest.sock", listen} {
		p := w.in.Start(t, "exec", box, "--", "sh", "-c",
			"[ -e /.agbox/link/own ] || mv /.agbox/link/guest.sock /.agbox/link/own; rm -f /.agbox/link/guest.sock; "+trick)
		if trick == listen {
			p.AwaitOutput(t, "listens")
		} else {
			p.Wait(t).Want(t, 0)
		}
		w.kill(t)
		w.in.Must(t, "daemon", "start")
		w.wantUntrusted(t, box) // right after the start
		row.Note("%s", w.awaitDegraded(t, box, "trust"))
		w.wantUntrusted(t, box)
		w.finished(t, other)
		w.repairSocket(t, box)
		p.Signal(t, syscall.SIGTERM)
		p.Wait(t)
	}
	w.finished(t, box)
	w.check(t)
}

// wantUntrusted wants an exec to be refused because the supervisor cannot be trusted.
func (w *witness) wantUntrusted(t *testing.T, box string) {
	t.Helper()
	_, err := w.c.CreateExec(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}})
	var e *client.Error
	if !errors.As(err, &e) || e.Reason != agboxv1.ErrorReason_SUPERVISOR_TAMPERED.String() {
		t.Errorf("an exec gives %v", err)
	}
}

// repairSocket restores the supervisor's own socket and waits for the link.
func (w *witness) repairSocket(t *testing.T, box string) {
	t.Helper()
	link := filepath.Join(w.in.Home, "data", "guest", box, "link")
	socket := filepath.Join(link, "guest.sock")
	if err := os.RemoveAll(socket); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(link, "own"), socket); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the sandbox is linked again", func() bool {
		out, err := w.c.GetSandbox(harness.Bounded(t), box)
		return err == nil && !out.GetSandbox().GetDegraded()
	})
}

func TestAHostileSupervisorHurtsOnlyItsOwnSandbox(t *testing.T) {
	t.Parallel()
	answers := map[string]func(net.Conn){
		"silence": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"noise": func(c net.Conn) {
			for range 10_000 {
				if _, err := c.Write([]byte(ids.New() + ids.New())); err != nil {
					return
				}
			}
		},
		"a frame of 4 GiB":     frames(0xffffffff, 1, 2),
		"a frame of 3 MiB":     frames(3<<20, 1, 2),
		"answers to nothing":   frames(10, 77, 2),
		"requests of its own":  frames(10, 1, 1),
		"an empty greeting":    frames(0, 1, 2),
		"a hangup at once":     func(net.Conn) {},
		"data without an end":  frames(100, 1, 3),
		"a stream that stalls": func(c net.Conn) { _, _ = c.Write([]byte{0, 0}); _, _ = io.Copy(io.Discard, c) },
	}
	Row(t, 40, "supervisor replies with silence, noise, huge frames, wrong ids, lies", len(answers))
	w := newWitness(t, harness.New(t))
	box, other := w.box(t), w.box(t)
	w.in.Must(t, "exec", box, "--", "mv", "/.agbox/link/guest.sock", "/.agbox/link/own")
	for name, answer := range answers {
		end := impersonate(t, filepath.Join(w.in.Home, "data", "guest", box, "link", "guest.sock"), answer)
		w.kill(t)
		w.in.Must(t, "daemon", "start")
		reason := w.awaitDegraded(t, box)
		if reason == "" {
			t.Errorf("%s: no reason is given", name)
		}
		w.finished(t, other)
		w.in.Must(t, "ls")
		if kib := residentKiB(t, w.in.Status(t).PID); kib > 200<<10 {
			t.Errorf("%s: the daemon takes %d KiB", name, kib)
		}
		end()
	}
	w.repairSocket(t, box)
	w.finished(t, box)
	w.check(t)
}

// frames answers all input with frames of the given length, stream and type, with zeros
// as content.
func frames(length, stream uint32, kind byte) func(net.Conn) {
	return func(c net.Conn) {
		header := binary.BigEndian.AppendUint32(nil, length)
		header = binary.BigEndian.AppendUint32(header, stream)
		header = append(header, kind, 0)
		block := make([]byte, 64<<10)
		for {
			if _, err := c.Write(header); err != nil {
				return
			}
			for rest := uint64(length); rest > 0; rest -= min(rest, uint64(len(block))) {
				if _, err := c.Write(block[:min(rest, uint64(len(block)))]); err != nil {
					return
				}
			}
		}
	}
}

// impersonate answers on a socket until the function that it returns is called.
func impersonate(t *testing.T, socket string, answer func(net.Conn)) func() {
	t.Helper()
	if err := os.RemoveAll(socket); err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	var mu sync.Mutex // guards conns
	conns := make(map[net.Conn]bool)
	serving.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			serving.Go(func() {
				defer conn.Close()
				answer(conn)
			})
		}
	})
	end := sync.OnceFunc(func() {
		_ = lis.Close()
		mu.Lock()
		for conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	t.Cleanup(end)
	return end
}

// residentKiB is the memory of a process.
func residentKiB(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	kib := 0
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, _ = fmt.Sscan(value, &kib)
		}
	}
	return kib
}

func TestAProcessThatIgnoresSIGTERMIsKilledAndItsSandboxStops(t *testing.T) {
	t.Parallel()
	row := Row(t, 47, "a process ignores SIGTERM: cancelled, stopped, removed", 3)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	const stubborn = "trap '' TERM; echo runs; while :; do sleep 1000; done"
	pid := w.pidInside(t, box)

	cancelled := w.in.Start(t, "exec", box, "--", "sh", "-c", stubborn)
	cancelled.AwaitOutput(t, "runs\n")
	w.in.Must(t, "kill", "--grace", "200ms", w.onlyExec(t, box))
	cancelled.Wait(t).Want(t, 137)
	harness.Eventually(t, "its tree is gone", func() bool { return len(processesOf(pid, "sleep")) == 0 })

	stopped := w.in.Start(t, "exec", box, "--", "sh", "-c", stubborn)
	stopped.AwaitOutput(t, "runs\n")
	id := w.onlyExec(t, box)
	began := time.Now()
	w.in.Must(t, "stop", box)
	row.Note("stop took %v", time.Since(began).Round(100*time.Millisecond))
	if said := stopped.Wait(t).Want(t, 137).Stderr; !strings.Contains(said, "The sandbox was stopped or removed while the command ran.") {
		t.Errorf("the user of the stopped exec read %q", said)
	}
	if e, err := w.c.GetExec(harness.Bounded(t), id); err != nil || e.GetSignal() != 9 || e.GetErrorCode() != "SANDBOX_STOPPED_UNDER_EXEC" {
		t.Errorf("the stopped exec is %v (%v)", e, err)
	}
	w.in.Must(t, "start", box)

	removed := w.in.Start(t, "exec", box, "--", "sh", "-c", stubborn)
	removed.AwaitOutput(t, "runs\n")
	began = time.Now()
	w.in.Must(t, "rm", "--wait", "-f", box)
	row.Note("removal took %v", time.Since(began).Round(100*time.Millisecond))
	w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
	if r := removed.Wait(t); r.Code == 0 {
		t.Errorf("the removed exec ended with %d: %s", r.Code, r.Stderr)
	}
	w.check(t)
}

// onlyExec returns the id of the only running exec of a sandbox.
func (w *witness) onlyExec(t *testing.T, box string) string {
	t.Helper()
	execs, err := w.c.ListActiveExecs(harness.Bounded(t), box)
	if err != nil || len(execs) != 1 {
		t.Fatalf("sandbox %s runs %v (%v), want one exec", box, execs, err)
	}
	return execs[0].GetExecId()
}
