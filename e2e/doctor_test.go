package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

func (in *install) database() string { return filepath.Join(in.Home, "data", "ids.db") }

// finding is a row of "agbox doctor -o json".
type finding struct {
	Action      string `json:"action"`
	Kind        string `json:"kind"`
	Name        string `json:"name"`
	SandboxID   string `json:"sandbox_id"`
	Why         string `json:"why"`
	Done        bool   `json:"done"`
	NeedsPerson bool   `json:"needs_person"`
}

// doctor runs "agbox doctor" and requires the exit code.
func (in *install) doctor(t *testing.T, code int, args ...string) []finding {
	t.Helper()
	r := in.Agbox(t, append([]string{"doctor", "-o", "json"}, args...)...).Want(t, code)
	var out struct {
		Findings []finding `json:"findings"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("%v in %s", err, r.Stdout)
	}
	return out.Findings
}

// find returns the finding about the object with the name.
func find(t *testing.T, all []finding, name string) finding {
	t.Helper()
	for _, f := range all {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("there is no finding about %s in %+v", name, all)
	return finding{}
}

// wantNoStart checks a command whose daemon refused to start: it must quote the reason.
func wantNoStart(t *testing.T, r harness.Result, says string) {
	t.Helper()
	if r.Want(t, 5); !strings.Contains(r.Stderr, says) {
		t.Errorf("stderr does not speak of %q:\n%s", says, r.Stderr)
	}
}

func TestALostDatabaseIsRefusedAndItsSandboxesAreAdopted(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	running := in.Create(t, "demo", harness.ImageBusybox, "--env", "COLOUR=green", "--label", "team=red")
	stopped := in.Create(t, "idle", harness.ImageBusybox)
	in.Must(t, "stop", "idle")
	job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", gated+"exit 7")
	gate := gateOf(in, running)
	before := in.primary(t, running)
	in.Must(t, "daemon", "stop")
	if err := os.Rename(in.database(), filepath.Join(in.Home, "lost.db")); err != nil {
		t.Fatal(err)
	}

	wantNoStart(t, in.Agbox(t, "ls"), "agbox doctor --fix")
	if _, err := os.Stat(in.database()); err == nil {
		t.Fatal("a new database was made in the place of the lost one")
	}
	for _, fix := range []bool{false, true} {
		code, args := 1, []string{}
		if fix {
			code, args = 0, []string{"--fix"}
		}
		all := in.doctor(t, code, args...)
		for _, name := range []string{in.database(), runtime.PrimaryName(running), runtime.PrimaryName(stopped)} {
			if f := find(t, all, name); f.Action != "adopt" || f.Done != fix {
				t.Errorf("with fix %v doctor says %+v, want an adoption", fix, f)
			}
		}
		if _, err := os.Stat(in.database()); (err == nil) != fix {
			t.Fatalf("with fix %v looking for the database gives %v", fix, err)
		}
	}

	in.Agbox(t, "exec", "demo", "--", "sh", "-c", "echo $COLOUR").Want(t, 0).WantOutput(t, "green\n", "")
	in.Must(t, "start", "idle")
	in.Agbox(t, "exec", "idle", "--", "echo", "awake").Want(t, 0).WantOutput(t, "awake\n", "")
	if after := in.primary(t, running); after.ID != before.ID || after.Pid != before.Pid {
		t.Errorf("the primary was %s (pid %d) and is %s (pid %d)", before.ID, before.Pid, after.ID, after.Pid)
	}
	openGate(t, gate)
	in.Agbox(t, "logs", "-f", job).Want(t, 0).WantOutput(t, "before\nafter\n", "")
	if events := in.Must(t, "events", "demo"); !strings.Contains(events, "adopted") || !strings.Contains(events, job) {
		t.Errorf("the history of the sandbox is\n%s", events)
	}
	in.doctor(t, 0)
}

func TestADamagedDatabaseIsRefusedAndLeftAsItIs(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	in.Must(t, "daemon", "stop")
	sound, err := os.ReadFile(in.database())
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func([]byte) []byte{
		"truncated": func(b []byte) []byte { return b[:len(b)/2+100] },
		"empty":     func([]byte) []byte { return nil },
		"zeroed":    func(b []byte) []byte { return make([]byte, len(b)) },
		"bit flip":  func(b []byte) []byte { b[20] ^= 4; return b },
	} {
		damaged := damage(append([]byte(nil), sound...))
		if err := os.WriteFile(in.database(), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		wantNoStart(t, in.Agbox(t, "ls"), "is damaged")
		for _, args := range [][]string{nil, {"--fix"}} {
			all := in.doctor(t, 1, args...)
			if f := find(t, all, in.database()); !f.NeedsPerson || !strings.Contains(f.Why, "backup") {
				t.Errorf("%s: doctor says %+v", name, f)
			}
			if f := find(t, all, runtime.PrimaryName(box)); f.Action != "leave" {
				t.Errorf("%s: doctor says %+v", name, f)
			}
		}
		wantFile(t, in.database(), string(damaged))
	}

	// What the error message advises: remove the file, then the sandboxes are adopted.
	if err := os.Remove(in.database()); err != nil {
		t.Fatal(err)
	}
	in.doctor(t, 0, "--fix")
	in.Agbox(t, "exec", "demo", "--", "echo", "back").Want(t, 0).WantOutput(t, "back\n", "")
}

func TestOrphansAreReportedAndRemovedOnRequestButNothingOfOthers(t *testing.T) {
	t.Parallel()
	in, other := newInstall(t), newInstall(t)
	wanted, gone := ids.New(), ids.New()
	box := in.Create(t, "demo", harness.ImageBusybox)
	theirs := other.primary(t, other.Create(t, "demo", harness.ImageBusybox))
	nobodys := foreignContainer(t, runtime.PrimaryName(wanted), nil)
	refused(t, in.Agbox(t, "create", "--id", wanted, "--image", harness.ImageBusybox), 4, "not this sandbox's")
	// As an earlier daemon may have left them: with our label and without a record.
	labels := map[string]string{
		"agbox.install-id": in.Status(t).InstallID, "agbox.sandbox-id": gone, "agbox.nonce": "n",
		"agbox.role": "primary", "agbox.service": "",
	}
	orphan := foreignContainer(t, runtime.PrimaryName(gone), labels)
	labels["agbox.role"] = "network"
	made, err := harness.DockerAPI.NetworkCreate(harness.Bounded(t), runtime.NetworkName(gone), network.CreateOptions{Labels: labels})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = harness.Engine.RemoveNetwork(context.WithoutCancel(t.Context()), made.ID) })

	all := in.doctor(t, 1)
	for _, name := range []string{runtime.PrimaryName(gone), runtime.NetworkName(gone)} {
		if f := find(t, all, name); f.Action != "remove" || f.Done || f.SandboxID != gone {
			t.Errorf("doctor says %+v, want a removal to come", f)
		}
	}
	for _, f := range all {
		if f.Name == runtime.PrimaryName(wanted) || strings.HasSuffix(f.Name, theirs.SandboxID) {
			t.Errorf("doctor speaks of what is not ours: %+v", f)
		}
	}
	if !exists(t, orphan) {
		t.Fatal("a look alone removed the orphan")
	}
	in.doctor(t, 0, "--fix")
	if exists(t, orphan) || !exists(t, nobodys) || !exists(t, theirs.ID) || !exists(t, in.primary(t, box).ID) {
		t.Error("want the orphan removed, and nothing else")
	}
	text := in.Agbox(t, "doctor").Want(t, 0).Stdout
	if !strings.Contains(text, "No problems found.") || !strings.Contains(text, "not touched.") {
		t.Errorf("doctor says\n%s", text)
	}
}

// foreignContainer makes a container without agbox, which never runs.
func foreignContainer(t *testing.T, name string, labels map[string]string) (id string) {
	t.Helper()
	made, err := harness.DockerAPI.ContainerCreate(harness.Bounded(t), &container.Config{Image: harness.ImageBusybox, Labels: labels}, nil, nil, nil, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = harness.Engine.RemoveContainer(context.WithoutCancel(t.Context()), made.ID) })
	return made.ID
}

func exists(t *testing.T, id string) bool {
	t.Helper()
	all, err := harness.DockerAPI.ContainerList(harness.Bounded(t), container.ListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.ID == id {
			return true
		}
	}
	return false
}

func TestASupervisorsSocketThatPointsElsewhereIsReported(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	in.Must(t, "exec", "demo", "--", "sh", "-c", "cd /.agbox/link && rm guest.sock && ln -s /var/run/docker.sock guest.sock")
	for range 2 {
		var seen bool
		for _, f := range in.doctor(t, 1) {
			seen = seen || f.Kind == "sandbox_record" && f.SandboxID == box && f.NeedsPerson && strings.Contains(f.Why, "tampered")
		}
		if !seen {
			t.Error("doctor does not say that the supervisor was tampered with")
		}
		in.KillDaemon(t)
		in.Must(t, "daemon", "start")
	}
	handle, err := in.Client(t).GetSandbox(harness.Bounded(t), box)
	if err != nil {
		t.Fatal(err)
	}
	if handle.GetSandbox().GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY {
		t.Errorf("the sandbox is %v", handle.GetSandbox())
	}
}
