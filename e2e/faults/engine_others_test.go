package faults

import (
	"bytes"
	"context"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

func TestSandboxesKeepTheirSupervisorWhenTheDaemonBringsAnother(t *testing.T) {
	t.Parallel()
	const rounds = 3
	Row(t, 9, "another supervisor comes with the daemon and goes again: each sandbox keeps its own", rounds)
	in := harness.New(t)
	w := newWitness(t, in)
	bins := []string{otherBinaries(t), in.Bin}
	boxes := []string{w.box(t)}
	supervisors := []string{supervisorOf(t, in, boxes[0])}
	for round := range rounds {
		for _, box := range boxes {
			if err := w.start(t.Context(), steady(box)); err != nil {
				t.Fatal(err)
			}
		}
		in.Must(t, "daemon", "stop")
		in.Bin = bins[round%2]
		in.Must(t, "daemon", "start")
		boxes = append(boxes, w.box(t))
		supervisors = append(supervisors, supervisorOf(t, in, boxes[round+1]))
		if supervisors[round+1] == supervisors[round] || supervisors[round+1] == "" {
			t.Errorf("the supervisors are %v, want the newest sandbox to have that of its daemon", supervisors)
		}
		for i, box := range boxes {
			wantRun(t, in, box)
			if now := supervisorOf(t, in, box); now != supervisors[i] {
				t.Errorf("sandbox %s had the supervisor %s and has %s", box, supervisors[i], now)
			}
		}
	}
	w.check(t)
	// Started again, it still has its own supervisor.
	in.Must(t, "stop", boxes[0])
	in.Must(t, "start", boxes[0])
	wantRun(t, in, boxes[0])
	w.check(t)
}

// supervisorOf returns the path of a sandbox's supervisor.
func supervisorOf(t *testing.T, in *harness.Install, box string) string {
	t.Helper()
	seen, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), primaryOf(t, in, box).ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range seen.Mounts {
		if m.Destination == paths.InContainerInit {
			return m.Source
		}
	}
	return ""
}

func TestADatabaseOfANewerAgboxIsRefusedAndNotWritten(t *testing.T) {
	t.Parallel()
	Row(t, 9, "database with a newer schema: refused, not a byte written, sandboxes untouched", 1)
	in := harness.New(t)
	w := newWitness(t, in)
	box := w.box(t)
	through := steady(box)
	if err := w.start(t.Context(), through); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "stop")
	database := filepath.Join(in.Home, "data", "ids.db")
	older, err := os.ReadFile(database)
	if err != nil {
		t.Fatal(err)
	}
	setSchema(t, database, 4_000_000)
	newer, err := os.ReadFile(database)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		refused := in.StartBinary(t, "agboxd", "run").Wait(t).Want(t, 1)
		if !strings.Contains(refused.Stderr, "newer") || strings.Contains(refused.Stderr, "goroutine") {
			t.Errorf("the daemon says %q", refused.Stderr)
		}
	}
	if now, err := os.ReadFile(database); err != nil || !bytes.Equal(now, newer) {
		t.Errorf("the database was written to (%v)", err)
	}
	if err := os.WriteFile(database, older, 0o600); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "start")
	wantRun(t, in, box)
	w.check(t)
}

// setSchema sets the schema number of a database, as another agbox would.
func setSchema(t *testing.T, path string, version uint32) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = db.Update(func(tx *bbolt.Tx) error {
		meta := new(storev1.Meta)
		bucket := tx.Bucket([]byte("meta"))
		if err := proto.Unmarshal(bucket.Get([]byte("meta")), meta); err != nil {
			return err
		}
		meta.SchemaVersion = version
		raw, err := proto.Marshal(meta)
		if err != nil {
			return err
		}
		return bucket.Put([]byte("meta"), raw)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSlowReadersOfStreamsHoldUpNobody(t *testing.T) {
	t.Parallel()
	const readers, lines = 60, 300_000 // of 15 bytes: 4.5 MB, and 270 MB if it were kept for each reader
	r := Row(t, 41, "stream clients that do not read: logs, events; then go on where they were", readers)
	in := harness.New(t)
	w := newWitness(t, in)
	box := w.box(t)
	big := job{id: ids.New(), box: box, lines: lines, code: 2}
	if err := w.start(t.Context(), big); err != nil {
		t.Fatal(err)
	}
	// The streams last as long as the test, whose duration is not bounded.
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	slow := make([]*slowReader, readers)
	for i := range slow {
		slow[i] = newSlowReader(ctx, w.c, big.id)
	}
	watch, stopWatch := iter.Pull2(w.c.WatchEvents(ctx, client.WatchOptions{}))
	if _, err, ok := watch(); err != nil || !ok {
		t.Fatalf("the watch gives no event: %v", err)
	}
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for range 10 {
				status, err := w.c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}}, io.Discard, io.Discard)
				if err != nil || status.Code != 0 {
					t.Errorf("a short command beside slow readers: %v %v", status, err)
				}
			}
		})
	}
	others.Wait()
	w.check(t) // follows the whole log
	rss := residentMB(t, in.Status(t).PID)
	r.Note("the daemon has %d MB with %d readers that do not read", rss, readers)
	if rss > 150 {
		t.Errorf("the daemon has %d MB", rss)
	}

	// A stop ends the streams. The readers continue at the same byte.
	in.Must(t, "daemon", "stop")
	in.Must(t, "daemon", "start")
	stdout, stderr := big.output()
	want := sums(stdout, stderr)
	bound := time.AfterFunc(harness.Patience, giveUp)
	defer bound.Stop()
	for _, reader := range slow {
		bound.Reset(harness.Patience)
		if got, err := reader.rest(); err != nil || got != want {
			t.Errorf("a slow reader has %s in the end (%v), want %s", got, err, want)
		}
	}
	stopWatch()
	w.check(t)
}

// slowReader follows a log and stops reading after the first piece.
type slowReader struct {
	next           func() (client.LogItem, error, bool)
	stop           func()
	stdout, stderr hash.Hash64
}

func newSlowReader(ctx context.Context, c *client.Client, exec string) *slowReader {
	r := &slowReader{stdout: fnv.New64a(), stderr: fnv.New64a()}
	r.next, r.stop = iter.Pull2(c.FollowLogs(ctx, exec, client.LogOptions{Follow: true}))
	_, _ = r.take()
	return r
}

// take reads one piece; more is false at the end.
func (r *slowReader) take() (more bool, err error) {
	item, err, ok := r.next()
	if err != nil || !ok {
		return false, err
	}
	if item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR {
		_, _ = r.stderr.Write(item.Data)
	} else {
		_, _ = r.stdout.Write(item.Data)
	}
	return true, nil
}

// rest reads to the end and returns the checksums of everything that was read.
func (r *slowReader) rest() (string, error) {
	defer r.stop()
	for {
		more, err := r.take()
		if err != nil || !more {
			return fmt.Sprintf("%x %x", r.stdout.Sum64(), r.stderr.Sum64()), err
		}
	}
}

// sums returns the result of rest for a complete output.
func sums(stdout, stderr []byte) string {
	a, b := fnv.New64a(), fnv.New64a()
	_, _ = a.Write(stdout)
	_, _ = b.Write(stderr)
	return fmt.Sprintf("%x %x", a.Sum64(), b.Sum64())
}

// residentMB is the memory of a process.
func residentMB(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmRSS:"); found {
			kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kb / 1024
		}
	}
	t.Fatalf("the status of process %d has no memory in it", pid)
	return 0
}

func TestWhenNoSubnetIsLeftACreateSaysSoAndLeavesNothing(t *testing.T) {
	t.Parallel()
	const rounds = 3
	Row(t, 48, "one subnet for two sandboxes: actionable error, nothing half-made, free again later", rounds)
	_, in := private(t) // no other process uses its addresses
	in.Bin = flagged(t, "--resync", "1s", "--subnets", "10.213.77.0/28")
	w := newWitness(t, in)
	for range rounds {
		box := w.box(t)
		failed := in.Agbox(t, "create", "--image", harness.ImageBusybox)
		if failed.Code != 7 || !strings.Contains(failed.Stderr, "10.213.77.0/28") || !strings.Contains(failed.Stderr, "remove sandboxes") {
			t.Errorf("create without a free subnet: code %d, %s", failed.Code, failed.Stderr)
		}
		for _, sb := range strings.Fields(in.Must(t, "ls", "-q")) {
			if sb == box {
				continue
			}
			shown := awaitState(t, w.c, sb, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
			if shown.GetErrorCode() != agboxv1.ErrorReason_NETWORK_POOL_EXHAUSTED.String() {
				t.Errorf("the sandbox failed with %q: %s", shown.GetErrorCode(), shown.GetErrorMessage())
			}
			harness.Eventually(t, "nothing of it is left in the engine", func() bool {
				inv := in.Inventory(t)
				return len(inv.Containers) == 1 && len(inv.Networks) == 1
			})
			in.Must(t, "rm", "--wait", sb)
		}
		wantRun(t, in, box)
		w.check(t)
		in.Must(t, "rm", "--wait", box)
		w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
	}
	w.check(t)
}
