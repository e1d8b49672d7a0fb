package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// consecutive upgrades, with this many callers and streams
	upgrades, callers, streams = 10, 64, 20
	// connections is the number of connections that the callers share.
	connections = 16
	// callEvery paces a caller, because on an overloaded machine the waits would come
	// from the load itself.
	callEvery = 50 * time.Millisecond
	execEvery = 400 * time.Millisecond
)

// numbered writes numbered lines to both outputs until its gate opens.
const numbered = `i=1
while [ ! -e /var/log/agents-sandbox/gate ]; do
	for k in 1 2 3 4 5 6 7 8 9 10; do echo "line $i"; i=$((i+1)); done
	echo "note $i" >&2
	usleep 100000
done
echo "last $((i-1))"
exit 37`

func TestUpgradesUnderLoadGoUnnoticed(t *testing.T) {
	in := newInstall(t)
	copies := []string{anotherCopy(t), anotherCopy(t)}
	box := in.Create(t, "demo", harness.ImageBusybox)
	before := in.primary(t, box)

	var followers []*followed
	var reading sync.WaitGroup
	streamClient := in.Client(t)
	// Until the test ends, however long the upgrades take.
	following, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	for range streams {
		f := &followed{id: in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", numbered)}
		followers = append(followers, f)
		reading.Go(func() { f.read(following, streamClient) })
	}
	processes := in.writers(t, before)
	if len(processes) != streams {
		t.Fatalf("%d writers run, want %d", len(processes), streams)
	}
	pid := in.Status(t).PID

	target := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", "trap : USR2; echo ready; while :; do sleep 1; done")
	in.Start(t, "logs", "-f", target).AwaitOutput(t, "ready\n") // an earlier signal would end it
	l := newLoad(t, in, box, target)
	l.await(t, 4*callers)
	l.longest()
	l.await(t, 4*callers)
	t.Logf("without an upgrade: %s", l.longest())
	for i := range upgrades {
		l.longest()
		begun := time.Now()
		in.Must(t, "daemon", "upgrade", "--binary", filepath.Join(copies[i%2], "agboxd"))
		took := time.Since(begun)
		if now := in.executable(t, pid); now != filepath.Join(copies[i%2], "agboxd") {
			t.Errorf("after upgrade %d the daemon runs %s", i+1, now)
		}
		// Those that waited are counted when they have their answers.
		l.await(t, 2*callers)
		t.Logf("upgrade %2d took %.0f ms: %s", i+1, took.Seconds()*1000, l.longest())
	}
	acknowledged := l.end(t)
	in.Must(t, "kill", target)

	if after := in.primary(t, box); after.ID != before.ID || after.Pid != before.Pid || !after.StartedAt.Equal(before.StartedAt) {
		t.Errorf("the primary was %+v and is %+v", before, after)
	}
	if now := in.writers(t, before); !slices.Equal(now, processes) {
		t.Errorf("the writers were %v and are %v", processes, now)
	}
	if now := in.Status(t).PID; now != pid {
		t.Errorf("the daemon's pid was %d and is %d", pid, now)
	}
	openGate(t, gateOf(in, box))
	bound := time.AfterFunc(harness.Patience, giveUp)
	defer bound.Stop()
	reading.Wait()
	for _, f := range followers {
		f.check(t, in)
	}
	wantEachOnce(t, in, acknowledged)
}

// writers are the process ids of the execs that write numbered lines.
func (in *install) writers(t *testing.T, p primary) []string {
	t.Helper()
	// Each thread has its own list of the children that it forked.
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, list := range lists {
		pids, _ := os.ReadFile(list) // a thread may have ended
		for _, pid := range strings.Fields(string(pids)) {
			command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if strings.Contains(string(command), "line $i") {
				found = append(found, pid)
			}
		}
	}
	return slices.Sorted(slices.Values(found))
}

// followed is one stream with its received output.
type followed struct {
	id             string
	stdout, stderr bytes.Buffer
	status         client.ExitStatus
	err            error
}

func (f *followed) read(ctx context.Context, c *client.Client) {
	f.status, f.err = c.CopyOutput(ctx, f.id, &f.stdout, &f.stderr)
}

// check compares the stream with the output of its command, line by line.
func (f *followed) check(t *testing.T, in *install) {
	t.Helper()
	if f.err != nil || f.status.Code != 37 {
		t.Errorf("the stream of %s ended with code %d (%v), want 37", f.id, f.status.Code, f.err)
	}
	lines := strings.Split(strings.TrimSuffix(f.stdout.String(), "\n"), "\n")
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprintf("line %d", i+1) {
			t.Fatalf("line %d of %s is %q", i+1, f.id, line)
		}
	}
	if last := lines[len(lines)-1]; last != fmt.Sprintf("last %d", len(lines)-1) {
		t.Errorf("the stream of %s ends with %q after %d lines", f.id, last, len(lines)-1)
	}
	in.Agbox(t, "logs", f.id).Want(t, 0).WantOutput(t, f.stdout.String(), f.stderr.String())
}

// load has callers that continue while the daemon is upgraded.
type load struct {
	stop    context.CancelFunc
	running sync.WaitGroup
	// reads and execWaits are the longest waits of Ping and ListSandboxes, and of
	// CreateExec and SignalExec, in nanoseconds.
	reads, execWaits atomic.Int64
	socket           string
	// target is an exec of the sandbox box that accepts signals.
	target, box string
	// answers wakes a goroutine that waits for a number of calls.
	answers chan struct{}

	// mu guards the fields below.
	mu     sync.Mutex
	execs  []string
	failed []error
	calls  int
}

func newLoad(t *testing.T, in *install, box, target string) *load {
	l := &load{socket: in.Socket(), target: target, box: box, answers: make(chan struct{}, 1<<20)}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(t.Context())
	var clients, readers []*client.Client
	for range connections {
		clients = append(clients, in.Client(t))
		readers = append(readers, in.Client(t, client.WithReconnect(0)))
	}
	for i := range callers {
		work, every := l.work(i)
		c := clients[i/4%connections]
		if i%4 == 1 {
			c = readers[i/4%connections]
		}
		l.running.Go(func() {
			// Not all at the same time: they would wait for each other.
			turn := time.NewTimer(every * time.Duration(i) / callers)
			defer turn.Stop()
			for {
				select {
				case <-turn.C:
				case <-ctx.Done():
					return
				}
				turn.Reset(every)
				// Not with ctx: a started call is completed.
				l.note(work(context.WithoutCancel(ctx), c))
			}
		})
	}
	t.Cleanup(func() {
		l.stop()
		l.running.Wait()
	})
	return l
}

// work returns the call of the caller with that number, one of four kinds.
func (l *load) work(i int) (call func(context.Context, *client.Client) error, every time.Duration) {
	switch {
	case i%16 == 0:
		// Sent at most once, so that a repetition cannot hide a loss.
		return func(ctx context.Context, c *client.Client) error {
			return timed(&l.execWaits, func() error { return c.SignalExec(ctx, l.target, syscall.SIGUSR2) })
		}, execEvery
	case i%4 == 0:
		return func(ctx context.Context, c *client.Client) error {
			return timed(&l.reads, func() error { return l.pingAnew(ctx) })
		}, callEvery
	case i%4 == 1:
		return func(ctx context.Context, c *client.Client) error {
			return timed(&l.reads, func() error { _, err := c.ListSandboxes(ctx, client.ListOptions{}); return err })
		}, callEvery
	case i%4 == 2:
		return func(ctx context.Context, c *client.Client) error {
			id := ids.New()
			request := &agboxv1.CreateExecRequest{SandboxId: l.box, ExecId: id, Command: []string{"sh", "-c", "echo " + id + " >>/tmp/ran"}}
			return l.acknowledged(id, timed(&l.execWaits, func() error { _, err := c.CreateExec(ctx, request); return err }))
		}, execEvery
	}
	return func(ctx context.Context, c *client.Client) error {
		id := ids.New()
		request := &agboxv1.CreateExecRequest{SandboxId: l.box, ExecId: id, Command: []string{"sh", "-c", "echo " + id + " | tee -a /tmp/ran; exit 3"}}
		var out bytes.Buffer
		status, err := c.Run(ctx, request, &out, &out)
		if err == nil && (status.Code != 3 || out.String() != id+"\n") {
			err = fmt.Errorf("exec %s gave code %d and %q", id, status.Code, out.String())
		}
		return l.acknowledged(id, err)
	}, execEvery
}

func timed(longest *atomic.Int64, call func() error) error {
	begun := time.Now()
	err := call()
	took := int64(time.Since(begun))
	for known := longest.Load(); took > known && !longest.CompareAndSwap(known, took); {
		known = longest.Load()
	}
	return err
}

// longest returns the longest waits since the previous call.
func (l *load) longest() string {
	return fmt.Sprintf("longest wait of a read %.1f ms, of CreateExec and SignalExec %.1f ms",
		time.Duration(l.reads.Swap(0)).Seconds()*1000, time.Duration(l.execWaits.Swap(0)).Seconds()*1000)
}

// pingAnew calls over a new connection. Like the other reads it has no retries: no
// connection may be refused and no call lost.
func (l *load) pingAnew(ctx context.Context) error {
	c, err := client.New(client.WithSocket(l.socket), client.WithReconnect(0))
	if err != nil {
		return err
	}
	_, err = c.Ping(ctx)
	return errors.Join(err, c.Close())
}

func (l *load) acknowledged(id string, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.execs = append(l.execs, id)
	return err
}

func (l *load) note(err error) {
	l.mu.Lock()
	l.calls++
	if err != nil {
		l.failed = append(l.failed, err)
	}
	l.mu.Unlock()
	l.answers <- struct{}{}
}

// await returns after this many further calls.
func (l *load) await(t *testing.T, calls int) {
	t.Helper()
	for len(l.answers) > 0 {
		<-l.answers
	}
	ctx := harness.Bounded(t)
	for range calls {
		select {
		case <-l.answers:
		case <-ctx.Done():
			t.Fatal("the callers got no answers any more")
		}
	}
}

// end stops the callers and returns the acknowledged execs.
func (l *load) end(t *testing.T) []string {
	t.Helper()
	l.stop()
	l.running.Wait()
	t.Logf("%d calls, %d failed", l.calls, len(l.failed))
	if len(l.failed) > 0 {
		t.Errorf("%d of %d calls failed: %v", len(l.failed), l.calls, errors.Join(l.failed[:min(5, len(l.failed))]...))
	}
	return l.execs
}

// wantEachOnce checks that every acknowledged exec ran exactly once.
func wantEachOnce(t *testing.T, in *install, execs []string) {
	t.Helper()
	harness.Eventually(t, "all execs have ended", func() bool { return len(in.execs(t)) == 0 })
	ran := strings.Fields(in.Must(t, "exec", "demo", "--", "cat", "/tmp/ran"))
	slices.Sort(ran)
	slices.Sort(execs)
	if !slices.Equal(ran, execs) {
		t.Errorf("%d execs ran (%d different ones), want each of the %d that were acknowledged, once",
			len(ran), len(slices.Compact(slices.Clone(ran))), len(execs))
	}
}
