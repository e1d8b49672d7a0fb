package faults

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// witness records what an install has acknowledged and checks it.
type witness struct {
	in *harness.Install
	c  *client.Client
	// stranger is a foreign container with labels like ours.
	stranger string
	pid      int

	// mu guards the fields below.
	mu    sync.Mutex
	boxes map[string]agboxv1.SandboxState
	// runs has the open file of each sandbox in which the oracle records its runs.
	runs  map[string]*os.File
	execs map[string]job
}

// job is an exec of the oracle with its expected end.
type job struct {
	id, box     string
	lines, code int
	// every and pause slow it down: a pause after every this many lines.
	every int
	pause time.Duration
}

func newWitness(t *testing.T, in *harness.Install) *witness {
	t.Helper()
	in.Must(t, "daemon", "start")
	w := &witness{in: in, c: in.Client(t), boxes: make(map[string]agboxv1.SandboxState), runs: make(map[string]*os.File), execs: make(map[string]job)}
	// A client waits for a daemon that went away only after a first answer.
	if _, err := w.c.Ping(harness.Bounded(t)); err != nil {
		t.Fatal(err)
	}
	w.stranger = strange(t, "agbox-primary-"+ids.New(), strangersLabels)
	w.pid = pidOf(t, w.stranger)
	return w
}

// strangersLabels are the labels of a sandbox of another install.
var strangersLabels = map[string]string{
	"agbox.install-id": "ffffffffffffffff", "agbox.sandbox-id": "stranger", "agbox.nonce": "0", "agbox.role": "primary", "agbox.service": "",
}

// strange runs a container without relation to agbox, until the test ends.
func strange(t *testing.T, name string, labels map[string]string) string {
	t.Helper()
	ctx := harness.Bounded(t)
	made, err := harness.DockerAPI.ContainerCreate(ctx,
		&container.Config{Image: harness.ImageBusybox, Cmd: []string{"sleep", "100000"}, Labels: labels, StopSignal: "KILL"},
		&container.HostConfig{NetworkMode: "none"}, nil, nil, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), harness.Patience)
		defer cancel()
		if err := harness.DockerAPI.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true}); err != nil && !errdefs.IsNotFound(err) {
			t.Errorf("the strange container cannot be removed: %v", err)
		}
	})
	if err := harness.DockerAPI.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	return made.ID
}

// pidOf returns the process id of a running container, or 0.
func pidOf(t *testing.T, id string) int {
	t.Helper()
	return harness.PIDOf(harness.Bounded(t), t, id)
}

// logs returns the folder of a sandbox's logs, which its commands also see.
func (w *witness) logs(box string) string {
	return filepath.Join(w.in.Home, "data", "exec-logs", box)
}

// box makes a sandbox that has the oracle, and returns its id.
func (w *witness) box(t *testing.T, more ...string) string {
	t.Helper()
	id := w.in.Must(t, append([]string{"create", "--image", harness.ImageBusybox}, more...)...)
	w.equip(t, id)
	w.holds(id, agboxv1.SandboxState_SANDBOX_STATE_READY)
	return id
}

// equip copies the oracle to where commands of the sandbox find it.
func (w *witness) equip(t *testing.T, box string) {
	t.Helper()
	binary, err := os.ReadFile(oracleBinary())
	if err != nil {
		t.Fatal(err)
	}
	if err := harness.WriteProgram(filepath.Join(w.logs(box), "oracle"), binary); err != nil {
		t.Fatal(err)
	}
	// Kept open, because it is removed with the sandbox.
	ran, err := os.OpenFile(filepath.Join(w.logs(box), "ran"), os.O_RDONLY|os.O_CREATE, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ran.Close() })
	if err := ran.Chmod(0o666); err != nil { // whatever the umask
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs[box] = ran
}

// holds sets the expected state of a sandbox.
func (w *witness) holds(box string, state agboxv1.SandboxState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boxes[box] = state
}

// request returns the request of a job.
func (j job) request() *agboxv1.CreateExecRequest {
	args := []string{"/var/log/agents-sandbox/oracle", j.id, strconv.Itoa(j.lines), strconv.Itoa(j.code)}
	if j.every > 0 {
		args = append(args, strconv.Itoa(j.every), j.pause.String())
	}
	return &agboxv1.CreateExecRequest{SandboxId: j.box, ExecId: j.id, Command: args}
}

// output returns what the job writes.
func (j job) output() (stdout, stderr []byte) {
	for seq := 1; seq <= j.lines; seq++ {
		line := fmt.Appendf(nil, "%d,%08x\n", seq, crc32.ChecksumIEEE(fmt.Appendf(nil, "%s %d", j.id, seq)))
		stdout = append(stdout, line...)
		if seq%10 == 0 {
			stderr = append(stderr, line...)
		}
	}
	return stdout, stderr
}

// start runs a job. When it returns, the job is acknowledged.
func (w *witness) start(ctx context.Context, j job) error {
	if _, err := w.c.CreateExec(ctx, j.request()); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.execs[j.id] = j
	return nil
}

// verdict counts violations, for figures. Each also fails the test.
type verdict struct {
	execs, bytes, lostBytes, wrongCodes, leaked int
}

// check checks the invariants of all faults. It waits for the jobs to end.
func (w *witness) check(t *testing.T) verdict {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var v verdict
	for _, j := range w.execs {
		w.checkJobLocked(t, j, &v)
	}
	for box, state := range w.boxes {
		w.checkBoxLocked(t, box, state)
	}
	w.checkEngineLocked(t, &v)
	if now := pidOf(t, w.stranger); now != w.pid || now == 0 {
		t.Errorf("the container of somebody else had pid %d and has %d", w.pid, now)
	}
	return v
}

// checkJobLocked checks the output and exit code of one exec.
func (w *witness) checkJobLocked(t *testing.T, j job, v *verdict) {
	t.Helper()
	var got [3]bytes.Buffer
	var end *agboxv1.LogEnd
	// The wait for each piece is bounded, because there may be many pieces.
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	bound := time.AfterFunc(harness.Patience, giveUp)
	defer bound.Stop()
	for item, err := range w.c.FollowLogs(ctx, j.id, client.LogOptions{Follow: true}) {
		if err != nil {
			t.Errorf("the log of exec %s: %v", j.id, err)
			return
		}
		bound.Reset(harness.Patience)
		got[item.Stream].Write(item.Data)
		end = item.End
	}
	v.execs++
	stdout, stderr := j.output()
	for stream, want := range map[agboxv1.LogStream][]byte{agboxv1.LogStream_LOG_STREAM_STDOUT: stdout, agboxv1.LogStream_LOG_STREAM_STDERR: stderr} {
		v.bytes += len(want)
		if !bytes.Equal(got[stream].Bytes(), want) {
			v.lostBytes += max(1, len(want)-got[stream].Len())
			harness.WantSame(t, fmt.Sprintf("%v of exec %s", stream, j.id), got[stream].String(), string(want))
		}
	}
	e := end.GetExec()
	if e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || int(e.GetExitCode()) != j.code || end.GetNotice() != "" ||
		e.GetStdoutBytes() != uint64(len(stdout)) || e.GetStderrBytes() != uint64(len(stderr)) {
		v.wrongCodes++
		t.Errorf("exec %s ended as %v (notice %q), want exit code %d", j.id, e, end.GetNotice(), j.code)
	}
}

// checkBoxLocked checks the state and history of a sandbox, and that its commands ran
// once.
func (w *witness) checkBoxLocked(t *testing.T, box string, state agboxv1.SandboxState) {
	t.Helper()
	out, err := w.c.GetSandbox(harness.Bounded(t), box)
	if err != nil || out.GetSandbox().GetState() != state {
		t.Errorf("sandbox %s is %v (%v), want it %v", box, out.GetSandbox(), err, state)
		return
	}
	starts, ends, next := make(map[string]int), make(map[string]int), uint64(1)
	for ev, err := range w.c.PastEvents(harness.Bounded(t), box, 0) {
		if err != nil {
			t.Errorf("the events of sandbox %s: %v", box, err)
			return
		}
		if ev.GetSequence() != next {
			t.Errorf("sandbox %s has event %d after %d", box, ev.GetSequence(), next-1)
		}
		next = ev.GetSequence() + 1
		switch ev.GetEventType() {
		case agboxv1.EventType_EXEC_STARTED:
			starts[ev.GetExec().GetExecId()]++
		case agboxv1.EventType_EXEC_FOUND: // the end before it is taken back
			ends[ev.GetExec().GetExecId()]--
		case agboxv1.EventType_EXEC_FINISHED, agboxv1.EventType_EXEC_FAILED, agboxv1.EventType_EXEC_CANCELLED:
			ends[ev.GetExec().GetExecId()]++
		}
	}
	ran := w.ran(t, box)
	for id, j := range w.execs {
		if j.box == box && (starts[id] != 1 || ends[id] != 1 || ran[id] != 1) {
			t.Errorf("exec %s has %d starts and %d ends in the history and ran %d times", id, starts[id], ends[id], ran[id])
		}
	}
	for id, times := range ran {
		if times != 1 {
			t.Errorf("exec %s ran %d times", id, times)
		}
	}
}

// ran counts the runs of each job of a sandbox.
func (w *witness) ran(t *testing.T, box string) map[string]int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.logs(box), "ran"))
	if kept := w.runs[box]; os.IsNotExist(err) && kept != nil {
		raw, err = io.ReadAll(io.NewSectionReader(kept, 0, 1<<20))
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	times := make(map[string]int)
	for _, id := range strings.Fields(string(raw)) {
		times[id]++
	}
	return times
}

// checkEngineLocked looks for duplicate or leftover objects. Objects that the engine made
// for a killed daemon may remain until the second full look.
func (w *witness) checkEngineLocked(t *testing.T, v *verdict) {
	t.Helper()
	id := w.installID(t)
	var wrong []string
	harness.EventuallyOr(t, func() bool {
		wrong = w.wrongInEngineLocked(t, id)
		return len(wrong) == 0
	}, func() {
		v.leaked += len(wrong)
		for _, what := range wrong {
			t.Error(what)
		}
	})
}

func (w *witness) wrongInEngineLocked(t *testing.T, installID string) (wrong []string) {
	t.Helper()
	inv, err := w.in.Engine.Inventory(harness.Bounded(t), installID)
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string][]string)
	for _, c := range inv.Containers {
		have[c.SandboxID] = append(have[c.SandboxID], "container "+c.Name)
	}
	for _, n := range inv.Networks {
		have[n.SandboxID] = append(have[n.SandboxID], "network "+n.Name)
	}
	alive := []agboxv1.SandboxState{agboxv1.SandboxState_SANDBOX_STATE_READY, agboxv1.SandboxState_SANDBOX_STATE_STOPPED}
	for box, state := range w.boxes {
		want := 0
		if slices.Contains(alive, state) {
			want = 2 // a primary and a network
		}
		if state != agboxv1.SandboxState_SANDBOX_STATE_FAILED && len(have[box]) != want {
			wrong = append(wrong, fmt.Sprintf("sandbox %s, %v, has %v in the engine", box, state, have[box]))
		}
		delete(have, box)
	}
	for box, objects := range have {
		wrong = append(wrong, fmt.Sprintf("the engine has %v of sandbox %q, which is not known", objects, box))
	}
	return wrong
}
