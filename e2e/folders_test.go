package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// wantDoctor wants agbox doctor to say a sentence about a sandbox that needs a person.
func (in *install) wantDoctor(t *testing.T, name, sentence string) {
	t.Helper()
	if f := find(t, in.doctor(t, 1), name); !f.NeedsPerson || !strings.Contains(f.Why, sentence) {
		t.Errorf("agbox doctor says of %s: %q, want %q", name, f.Why, sentence)
	}
}

func TestALogFolderThatIsRemovedUnderASandboxIsNamedAndMadeAgain(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	id := in.Create(t, "box", harness.ImageBusybox)
	folder := filepath.Join(in.Home, "data", "exec-logs", id)
	sentence := "The log folder " + folder + " was removed or replaced while sandbox " + id +
		" ran, so no command can run in it: stop and start the sandbox, which makes the folder again."
	refused := func() {
		t.Helper()
		in.Agbox(t, "exec", "box", "--", "true").Want(t, 125).WantOutput(t, "", "agbox: "+sentence+"\n")
		if shown := in.Must(t, "ps", "-a", "box"); strings.Contains(shown, "\n") {
			t.Errorf("an exec was accepted:\n%s", shown)
		}
		harness.Eventually(t, "inspect shows it", func() bool { return in.inspect(t, "box").GetSandbox().GetDegradedReason() == sentence })
		in.wantDoctor(t, "box", sentence)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	refused()
	// Another folder in its place is not what the container has mounted. After a restart
	// of the daemon only the supervisor can tell.
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	refused()
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	refused()

	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "stop", "box")
	in.Must(t, "start", "box")
	harness.WantSame(t, "after the start", in.Must(t, "exec", "box", "--", "echo", "hello"), "hello")
}

func TestTheFolderOfASupervisorIsMadeAgainAtAStart(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	id := in.Create(t, "box", harness.ImageUser)
	look := []string{"exec", "box", "--", "sh", "-c", "id -un; pwd"}
	before := in.Must(t, look...)
	folder := filepath.Join(in.Home, "data", "guest", id)
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	harness.WantSame(t, "over the link that stands", in.Must(t, look...), before)
	in.wantDoctor(t, "box", "The file "+filepath.Join(folder, "link", "guest.sock")+" was removed")
	in.Must(t, "stop", "box")
	in.Must(t, "start", "box")
	harness.WantSame(t, "after the start", in.Must(t, look...), before)
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	harness.WantSame(t, "after a restart of the daemon", in.Must(t, look...), before)
}

func TestTheSupervisorIsInstalledAgainForAStartAndACreate(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	in.Create(t, "box", harness.ImageBusybox)
	folder := filepath.Join(in.Home, "data", "supervisor")
	in.Must(t, "stop", "box")
	for _, next := range [][]string{{"start", "box"}, {"create", "other", "--image", harness.ImageBusybox}} {
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
		in.Must(t, next...)
		harness.WantSame(t, "after "+next[0], in.Must(t, "exec", next[1], "--", "echo", "hello"), "hello")
	}
}

func TestAnExecBehindARemovedSocketFailsWithTheRemedy(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	id := in.Create(t, "box", harness.ImageBusybox)
	folder := filepath.Join(in.Home, "data", "guest", id)
	for _, file := range []string{filepath.Join("link", "guest.sock"), "boot.pb"} {
		if err := os.Remove(filepath.Join(folder, file)); err != nil {
			t.Fatal(err)
		}
		in.wantDoctor(t, "box", "The file "+filepath.Join(folder, file)+" was removed")
		in.KillDaemon(t)
		in.Must(t, "daemon", "start")
		in.Agbox(t, "exec", "box", "--", "true").Want(t, 125).
			WantOutput(t, "", "agbox: Files in "+folder+" were removed, so the daemon cannot reach sandbox "+id+": stop and start the sandbox, which makes them again.\n")
		in.Must(t, "stop", "box")
		in.Must(t, "start", "box")
		harness.WantSame(t, "after the start", in.Must(t, "exec", "box", "--", "echo", "hello"), "hello")
	}
}
