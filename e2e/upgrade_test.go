package e2e

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/store"
)

// anotherCopy makes another folder of the binaries, like a newer version.
func anotherCopy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := harness.CopyBinaries(harness.Binaries, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// executable returns the path of the binary that the daemon runs.
func (in *install) executable(t *testing.T, pid int) string {
	t.Helper()
	path, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestANewBinaryThatIsNotFitChangesNothing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	before := in.Status(t)
	lone := t.TempDir()
	place := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(lone, name)
		if err := errors.Join(harness.WriteProgram(path, []byte(content)), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	daemon, err := os.ReadFile(filepath.Join(harness.Binaries, "agboxd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, binary, says string }{
		{"one that fails", place("fails", "#!/bin/sh\necho 'no disk today' >&2\nexit 1\n", 0o755), "no disk today"},
		{"one that fails in silence", "/bin/false", "exit status 1"},
		{"another program", "/bin/true", "not an agboxd"},
		{"a text", place("text", "hello\n", 0o755), "not a program"},
		{"a file that may not be executed", place("plain", "hello\n", 0o644), "may not be executed"},
		{"nothing", filepath.Join(lone, "nothing"), "no such file"},
		{"a folder", lone, "may not be executed"},
		{"one without its supervisor", place("agboxd", string(daemon), 0o755), "agbox-init"},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused(t, in.Agbox(t, "daemon", "upgrade", "--binary", c.binary), 4, c.says)
		})
	}
	_, err = agboxv1.NewSandboxServiceClient(in.connect(t)).UpgradeDaemon(harness.Bounded(t), &agboxv1.UpgradeDaemonRequest{Binary: "agboxd"})
	if reasonOf(err) != agboxv1.ErrorReason_UPGRADE_REFUSED.String() || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("a relative path gives %v", err)
	}
	if after := in.Status(t); after != before {
		t.Errorf("the daemon was %+v and is %+v", before, after)
	}
}

func TestClientsThatDoNothingDoNotPreventAnUpgrade(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", "exec 2>/dev/null; trap 'echo bye; exit 9' USR1; echo ready; while :; do sleep 0.05; done")
	follower := in.Start(t, "logs", "-f", job)
	follower.AwaitOutput(t, "ready\n")
	follower.Signal(t, syscall.SIGSTOP)
	silent, err := net.Dial("unix", in.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := silent.Read(make([]byte, 1)); err != nil { // the daemon has accepted it
		t.Fatal(err)
	}
	newer := filepath.Join(anotherCopy(t), "agboxd")
	pid := in.Status(t).PID
	in.Must(t, "daemon", "upgrade", "--binary", newer)
	if now := in.executable(t, pid); now != newer {
		t.Errorf("the daemon runs %s", now)
	}
	in.Must(t, "kill", "-s", "USR1", job)
	follower.Signal(t, syscall.SIGCONT)
	follower.Wait(t).Want(t, 0).WantOutput(t, "ready\nbye\n", "")
}

func TestHangupUpgradesToWhatIsInstalledNow(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Bin = anotherCopy(t)
	in.Must(t, "daemon", "start")
	before := in.Status(t)
	// As an installation does it: the new file replaces the old one.
	installed := filepath.Join(in.Bin, "agboxd")
	newer := filepath.Join(anotherCopy(t), "agboxd")
	if err := os.Rename(newer, installed); err != nil {
		t.Fatal(err)
	}
	if running := in.executable(t, before.PID); running != installed+" (deleted)" {
		t.Fatalf("the daemon runs %s, want the file that was replaced", running)
	}
	if err := syscall.Kill(before.PID, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "another daemon answers", func() bool { return !in.Status(t).StartedAt.Equal(before.StartedAt) })
	if after := in.Status(t); after.PID != before.PID || in.executable(t, after.PID) != installed {
		t.Errorf("the daemon has pid %d and runs %s, want pid %d and %s", after.PID, in.executable(t, after.PID), before.PID, installed)
	}
	// A binary that fails its check changes nothing here either.
	before = in.Status(t)
	if err := os.Remove(filepath.Join(in.Bin, "agbox-init")); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Bin = harness.Binaries }()
	if err := syscall.Kill(before.PID, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the log says why not", func() bool {
		log, err := os.ReadFile(filepath.Join(in.Home, "data", "agboxd.log"))
		return err == nil && bytes.Contains(log, []byte("SIGHUP: the daemon stays as it is"))
	})
	if after := in.Status(t); after != before {
		t.Errorf("the daemon was %+v and is %+v", before, after)
	}
}

func TestSandboxesThatAreBeingMadeSurviveAnUpgrade(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	c := in.Client(t)
	var boxes []string
	for range 6 {
		box, err := c.CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: harness.ImageBusybox}})
		if err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, box.GetSandboxId())
		in.Must(t, "daemon", "upgrade")
	}
	for _, box := range boxes {
		if _, err := c.WaitReady(harness.Bounded(t), box); err != nil {
			t.Errorf("sandbox %s: %v", box, err)
		}
	}
	if inv := in.Inventory(t); len(inv.Containers) != len(boxes) || len(inv.Networks) != len(boxes) {
		t.Errorf("the engine has %d containers and %d networks, want %d of each", len(inv.Containers), len(inv.Networks), len(boxes))
	}
}

func TestADatabaseOfANewerAgboxIsLeftAlone(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	in.Must(t, "daemon", "stop")
	path := filepath.Join(in.Home, "data", "ids.db")
	restamp(t, path, store.SchemaVersion+1)
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refusal := in.Agbox(t, "daemon", "run").Want(t, 1)
	if !strings.Contains(refusal.Stderr, "Start the newer agbox that wrote it.") {
		t.Errorf("daemon run says %q", refusal.Stderr)
	}
	left, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(left, written) {
		t.Errorf("the database was changed (%v)", err)
	}
	restamp(t, path, store.SchemaVersion)

	// A running daemon passes its schema to the check of its successor.
	check := in.StartBinary(t, "agboxd", "preflight", "--data", filepath.Join(in.Home, "data"), "--socket", in.Socket(),
		"--schema", strconv.Itoa(int(store.SchemaVersion)+1)).Wait(t)
	if check.Code != 1 || !strings.Contains(check.Stderr, "older than what is running") {
		t.Errorf("the check gives code %d and %q", check.Code, check.Stderr)
	}
}

// restamp writes another schema version into the database.
func restamp(t *testing.T, path string, schema uint32) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		meta := new(storev1.Meta)
		key := []byte("meta")
		if err := proto.Unmarshal(tx.Bucket(key).Get(key), meta); err != nil {
			return err
		}
		meta.SchemaVersion = schema
		raw, err := proto.Marshal(meta)
		if err != nil {
			return err
		}
		return tx.Bucket(key).Put(key, raw)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestADaemonWhoseSuccessorCannotBeExecutedGoesOn(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	before, container := in.Status(t), in.primary(t, box)
	// Passes its check and may not be executed afterwards.
	closing := filepath.Join(t.TempDir(), "agboxd")
	script := "#!/bin/sh\nchmod -x \"$0\"\nexec " + filepath.Join(in.Bin, "agboxd") + " \"$@\"\n"
	if err := harness.WriteProgram(closing, []byte(script)); err != nil {
		t.Fatal(err)
	}
	refused(t, in.Agbox(t, "daemon", "upgrade", "--binary", closing), 4, "the old one")
	if after := in.Status(t); after.PID != before.PID || after.StartedAt.Equal(before.StartedAt) {
		t.Errorf("the daemon was %+v and is %+v, want a new start in the same process", before, after)
	}
	in.Agbox(t, "exec", "demo", "--", "echo", "well").Want(t, 0).WantOutput(t, "well\n", "")
	if now := in.primary(t, box); now.ID != container.ID || now.Pid != container.Pid {
		t.Errorf("the primary was %+v and is %+v", container, now)
	}
	// It can still be upgraded.
	in.Must(t, "daemon", "upgrade")
	in.Agbox(t, "exec", "demo", "--", "echo", "well").Want(t, 0).WantOutput(t, "well\n", "")
}
