package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/process"
)

// leaves is the variable that makes TestLeavesAnEngine leave one.
const leaves = "AGBOX_TEST_LEAVES_AN_ENGINE"

// TestLeavesAnEngine is the test that TestTheEngineOfAKilledTestIsRemovedByTheNext kills.
func TestLeavesAnEngine(t *testing.T) {
	if os.Getenv(leaves) == "" {
		return
	}
	p := New(t, []string{harness.ImageBusybox})
	made, err := p.API().ContainerCreate(t.Context(), &container.Config{Image: harness.ImageBusybox, Cmd: []string{"sleep", "1000000"}}, nil, nil, nil, "")
	if err == nil {
		err = p.API().ContainerStart(t.Context(), made.ID, container.StartOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("root %s\n", p.root)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestTheEngineOfAKilledTestIsRemovedByTheNext(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestLeavesAnEngine$")
	cmd.Env = append(os.Environ(), leaves+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() // the child reads nothing
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	root, said := "", ""
	for lines := bufio.NewScanner(out); root == "" && lines.Scan(); {
		said += lines.Text() + "\n"
		root, _ = strings.CutPrefix(lines.Text(), "root ")
		if root == lines.Text() {
			root = ""
		}
	}
	if root == "" {
		_ = cmd.Wait()
		t.Fatalf("there is no engine:\n%s", said)
	}
	left := &Private{root: root, netns: filepath.Base(root)}
	sweep(t)
	if _, err := os.Stat(filepath.Join(root, "docker.sock")); err != nil {
		t.Errorf("the engine of a living test: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	strangers := strange(t)
	sweep(t)
	for _, path := range []string{root, "/run/netns/" + left.netns} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if groups := left.groups(); len(groups) > 0 || left.killShims(t) > 0 {
		t.Errorf("processes are left, or groups: %v", groups)
	}
	for _, dir := range strangers {
		if _, err := os.Lstat(dir); err != nil {
			t.Errorf("what is not of a test that is gone was removed: %v", err)
		}
	}
}

// TestAnEngineWithoutItsNamespaceIsRemoved: its tests were killed before they made the network
// namespace or after they removed it, or the host was rebooted.
func TestAnEngineWithoutItsNamespaceIsRemoved(t *testing.T) {
	gone := process.Identify(os.Getpid())
	gone.Start++
	root := ownedBy(t, gone)
	sweep(t)
	if _, err := os.Lstat(root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", root, err)
	}
}

// ownedBy returns a new folder like that of an engine, with a process as its owner.
func ownedBy(t *testing.T, owner process.Identity) string {
	dir, err := os.MkdirTemp(top, prefix+"-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	raw, err := json.Marshal(owner)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ownerFile), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// strange returns folders that look like those of engines and must stay.
func strange(t *testing.T) (dirs []string) {
	gone := process.Identify(os.Getpid())
	gone.Start++
	for owner, of := range map[string]process.Identity{"living": process.Identify(os.Getpid()), "nobody": {}, "other user": gone} {
		dir := ownedBy(t, of)
		if owner == "other user" {
			if err := os.Chown(dir, 4321, 4321); err != nil {
				t.Fatal(err)
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs
}
