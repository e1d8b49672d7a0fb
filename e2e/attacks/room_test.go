package attacks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// buildCaller builds the program that calls a supervisor from inside its sandbox.
func buildCaller(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "caller")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./caller")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the caller cannot be built: %v\n%s", err, out)
	}
	return program
}

// logFolder is the log folder of a sandbox on the host.
func logFolder(in *harness.Install, box string) string {
	return filepath.Join(in.Home, "data", "exec-logs", box)
}

// names returns what is in a folder.
func names(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestASandboxStartsNoExecsThroughItsOwnSocket(t *testing.T) {
	t.Parallel()
	Row(t, 9, "root in the sandbox asks the supervisor for 21,000 execs, each with files on the host")
	in := harness.New(t)
	box := in.Create(t, "box", harness.ImageBusybox)
	in.Must(t, "cp", buildCaller(t), box+":/caller")
	if said := in.Must(t, "exec", box, "--", "/caller", "21000"); !strings.HasPrefix(said, "started 0\n") {
		t.Errorf("the caller says %q", harness.Clip(said))
	}
	for _, name := range names(t, logFolder(in, box)) {
		if strings.HasPrefix(name, "flood-") {
			t.Fatalf("the log folder has %s", name)
		}
	}
	if said := in.Must(t, "exec", box, "--", "echo", "goes on"); said != "goes on" {
		t.Errorf("the sandbox says %q", said)
	}
}
