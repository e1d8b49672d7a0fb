package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// change runs steps on a folder.
func change(t *testing.T, steps ...error) {
	t.Helper()
	for _, err := range steps {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestSyncBringsBothSidesInStep(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{
		"a": "1\n2\n3\n4\n5\n", "b": "b\n", "c": "c\n", "old/x": "x\n", "run": "#!/bin/sh\n", "both": "both\n", "type": "file\n", ".gitignore": "*.o\n", ".git/config": "[core]\n",
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "", "agbox: Nothing was changed: "+dir+" and sandbox demo are in step.\n")
	in.inside(t, "demo", `cd /workspace; sed -i s/5/five/ a; mkdir in; mv c in/c; echo o > x.o; chmod +x run; ln -s /etc/shadow out; echo same > both; mkdir .vscode; echo t > .vscode/tasks.json; echo h > .git/config`)
	in.write(t, "project", map[string]string{"a": "one\n2\n3\n4\n5\n", "new/deep/file": "new\n", "y.o": "o\n", "both": "same\n", "new/run": "#!/bin/sh\n"})
	change(t, os.Remove(at("b")), os.RemoveAll(at("old")), os.Remove(at("type")), os.Symlink("a", at("type")), os.Symlink("/nowhere", at("new/link")), os.Chmod(at("new/run"), 0o755))
	r := in.Agbox(t, "sync", "demo").Want(t, 1)
	harness.WantSame(t, "the lines", r.Stdout, `!! U .vscode/tasks.json  (conflict: not brought without a yes: VS Code and its relatives, when it opens the folder, or starts a task of it)
!! U a  (conflict: both sides have changed it, and both keep theirs)
<- D c
<- A in/c
<- A out  (a link that leads out of the folder: /etc/shadow)
<- M run
-> D b
-> D old/x
-> A new/deep/file
-> A new/link
-> A new/run
-> M type
`)
	_, sum, _ := strings.Cut(r.Stderr, ".vscode/tasks.json  (VS Code and its relatives, when it opens the folder, or starts a task of it)\n")
	harness.WantSame(t, "the sum", sum, "agbox: 6 changes to the sandbox, 4 changes to the folder, 2 conflicts.\nagbox: `agbox apply demo` merges the files in conflict into the folder.\n")
	harness.WantSame(t, "the sandbox", in.inside(t, "demo", `cd /workspace; cat a | tr '\n' ' '; ls -d b old y.o 2>/dev/null; cat new/deep/file; readlink new/link; readlink type; stat -c '%U %a %n' new new/deep new/deep/file new/run; cat .git/config`),
		"1 2 3 4 five new\n/nowhere\na\nagent 755 new\nagent 755 new/deep\nagent 644 new/deep/file\nagent 755 new/run\nh\n")
	wantFile(t, at("a"), "one\n2\n3\n4\n5\n")
	wantFile(t, at("in/c"), "c\n")
	wantFile(t, at(".git/config"), "[core]\n")
	if st, err := os.Stat(at("run")); err != nil || st.Mode()&0o111 != 0o111 {
		t.Errorf("run is %v, %v", st, err)
	}
	for _, name := range []string{"c", "x.o"} {
		if _, err := os.Lstat(at(name)); !os.IsNotExist(err) {
			t.Errorf("there is %s: %v", name, err)
		}
	}
	// A merge of the conflict goes to the other side.
	harness.WantSame(t, "the merge", in.Agbox(t, "apply", "demo").Want(t, 1).Stdout, "M a  (merged)\n")
	harness.WantSame(t, "with a yes", in.Agbox(t, "sync", "demo", "--yes-executable").Want(t, 0).Stdout, "<- A .vscode/tasks.json  (look at it: this machine executes what it says, or agbox reads it next time)\n-> M a\n")
	in.write(t, "project", map[string]string{"a": "one\n2\n3\n4\nfive\n6\n"})
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "-> M a\n", "agbox: 1 change to the sandbox, 0 changes to the folder, 0 conflicts.\n")
	harness.WantSame(t, "a", in.inside(t, "demo", "cat /workspace/a"), "one\n2\n3\n4\nfive\n6\n")
	in.Agbox(t, "diff", "demo", "--exit-code").Want(t, 0)
}

func TestSyncWatchesBothSidesThroughACrashOfTheDaemon(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "a\n", ".gitignore": "build/\n"})
	at := func(name string) string { return filepath.Join(dir, name) }
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	p := in.Start(t, "sync", "--watch", "demo")
	in.write(t, "project", map[string]string{"host/one": "1\n"})
	p.AwaitOutput(t, "-> A host/one\n")
	if r := in.Agbox(t, "sync", "demo"); r.Code == 0 || !strings.Contains(r.Stderr, fmt.Sprintf("another agbox works on this folder: process %d, `", p.Cmd.Process.Pid)) {
		t.Errorf("a second sync of the folder ended with %d: %s", r.Code, r.Stderr)
	}
	in.inside(t, "demo", "cd /workspace; mkdir -p inside build; echo x >build/x; echo 2 >two; mv two inside/two")
	p.AwaitOutput(t, "<- A inside/two\n")
	harness.Eventually(t, "the content", func() bool { got, err := os.ReadFile(at("inside/two")); return err == nil && string(got) == "2\n" })
	// A folder that came from the other side is watched too.
	in.write(t, "project", map[string]string{"inside/three": "3\n"})
	p.AwaitOutput(t, "-> A inside/three\n")
	in.KillDaemon(t)
	in.write(t, "project", map[string]string{"host/four": "4\n"})
	p.AwaitOutput(t, "-> A host/four\n")
	in.inside(t, "demo", "cd /workspace; rm a host/one; echo 5 >.five; mv .five five")
	p.AwaitOutput(t, "<- D host/one\n")
	p.AwaitOutput(t, "<- A five\n")
	p.Signal(t, syscall.SIGINT)
	r := p.Wait(t).Want(t, 0)
	if !strings.HasPrefix(r.Stderr, "agbox: Keeping "+dir+" and /workspace of sandbox demo in step. Ctrl-C ends it.\n") || !strings.Contains(r.Stderr, "to the folder, 0 conflicts.\n") {
		t.Errorf("it said %s", r.Stderr)
	}
	for _, name := range []string{"a", "host/one", "build"} {
		if _, err := os.Lstat(at(name)); !os.IsNotExist(err) {
			t.Errorf("there is %s: %v", name, err)
		}
	}
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "", "agbox: Nothing was changed: "+dir+" and sandbox demo are in step.\n")
}

func TestSyncBringsNothingThroughLinksOfTheSandbox(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	outside := in.write(t, "outside", map[string]string{"secret": "of the host\n"})
	dir := in.write(t, "project", map[string]string{"d/x": "x\n", "f": "f\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "cd /workspace; rm -r d f; ln -s "+outside+" d; ln -s "+outside+"/secret f")
	r := in.Agbox(t, "sync", "demo").Want(t, 0)
	harness.WantSame(t, "the lines", r.Stdout, "<- A d  (a link that leads out of the folder: "+outside+")\n<- D d/x\n<- M f  (a link that leads out of the folder: "+outside+"/secret)\n")
	in.Agbox(t, "sync", "demo").Want(t, 0).WantOutput(t, "", "agbox: Nothing was changed: "+dir+" and sandbox demo are in step.\n")
	// What is behind the link does not come in, and is not written.
	in.inside(t, "demo", "cd /workspace; ! cat d/secret f 2>/dev/null; rm d f; mkdir d; echo hostile >d/secret; echo hostile >f")
	in.Agbox(t, "sync", "demo").Want(t, 0)
	wantFile(t, filepath.Join(outside, "secret"), "of the host\n")
	wantFile(t, filepath.Join(dir, "d/secret"), "hostile\n")
	wantFile(t, filepath.Join(dir, "f"), "hostile\n")
}

// What only the folder has and git does not track is no work of it, but it is never written over.
func TestSyncOfACopyOfWhatGitTracksKeepsOtherFilesOfTheFolder(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n"})
	gitIn(t, dir, "init", "-q", "-b", "main")
	gitIn(t, dir, "add", ".")
	in.write(t, "project", map[string]string{"notes": "of the folder\n", "same": "both\n", "folder/x": "of the folder\n", "file": "of the folder\n", "mine": "of the folder\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir, "--tracked")
	harness.WantSame(t, "the copy", in.inside(t, "demo", "ls /workspace"), "a\n")
	in.inside(t, "demo", "cd /workspace; echo of the sandbox > notes; echo both > same; echo of the sandbox > folder; mkdir file; echo of the sandbox > file/x; echo 2 > a")
	check := func(name string) {
		t.Helper()
		for one, want := range map[string]string{"notes": "of the folder\n", "same": "both\n", "folder/x": "of the folder\n", "file": "of the folder\n", "mine": "of the folder\n", "a": "2\n"} {
			wantFile(t, filepath.Join(dir, one), want)
		}
		harness.WantSame(t, name, in.inside(t, "demo", "cd /workspace; cat notes same folder file/x a; ls"), "of the sandbox\nboth\nof the sandbox\nof the sandbox\n2\na\nfile\nfolder\nnotes\nsame\n")
	}
	r := in.Agbox(t, "sync", "demo").Want(t, 1)
	if !strings.Contains(r.Stdout, "<- M a\n") || strings.Count(r.Stdout, "!! U ") != 3 ||
		!strings.Contains(r.Stdout, "!! U notes  (conflict: the folder has its own, which was left out of the copy: `agbox apply` brings both together)\n") {
		t.Errorf("sync says\n%s", r.Stdout)
	}
	check("the sandbox")
	if again := in.Agbox(t, "sync", "demo").Want(t, 1); strings.Count(again.Stdout, "!! U ") != 3 || strings.Contains(again.Stdout, "->") {
		t.Errorf("sync again says\n%s", again.Stdout)
	}
	check("the sandbox after a second sync")
	// What both have is in step from then on, although git does not track it.
	in.inside(t, "demo", "cd /workspace; echo 3 > same; rm notes")
	in.Agbox(t, "sync", "demo").Want(t, 1)
	wantFile(t, filepath.Join(dir, "same"), "3\n")
	wantFile(t, filepath.Join(dir, "notes"), "of the folder\n")
}

func TestSyncBringsAllIfAConflictIsResolvedWhileItAsks(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n", "b": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "echo sandbox > /workspace/b")
	in.write(t, "project", map[string]string{"b": "folder\n"})
	in.Agbox(t, "apply", "demo").Want(t, 1)
	in.inside(t, "demo", "cd /workspace; echo 2 > a; mkdir .vscode; echo t > .vscode/tasks.json")
	sync := in.OnTerminal(t, "sync", "demo")
	sync.Await("Bring them too?")
	in.write(t, "project", map[string]string{"b": "folder\nsandbox\n"})
	sync.Types("y\n")
	if code := sync.Wait(); code != 0 {
		t.Errorf("sync ended with %d: %s", code, sync.Screen())
	}
	wantFile(t, filepath.Join(dir, "a"), "2\n")
	wantFile(t, filepath.Join(dir, ".vscode/tasks.json"), "t\n")
	harness.WantSame(t, "the sandbox", in.inside(t, "demo", "cat /workspace/b"), "folder\nsandbox\n")
}

func TestSyncNamesAnIgnoredFileThatTheSandboxHasAddedToGit(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n", ".gitignore": "*.log\n"})
	gitIn(t, dir, "init", "-q", "-b", "main")
	gitIn(t, dir, "add", ".")
	added := filepath.Join(t.TempDir(), "added")
	gitIn(t, dir, "checkout-index", "-a", "--prefix="+added+"/")
	gitIn(t, added, "init", "-q", "-b", "main")
	change(t, os.WriteFile(filepath.Join(added, "k.log"), []byte("of the sandbox\n"), 0o600))
	gitIn(t, added, "add", "-f", ".")
	in.write(t, "project", map[string]string{"k.log": "of the folder\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir, "--use-gitignore")
	in.Must(t, "cp", filepath.Join(added, ".git", "index"), "demo:/workspace/.git/index")
	in.inside(t, "demo", "echo of the sandbox > /workspace/k.log")
	in.Agbox(t, "sync", "demo").Want(t, 1).WantOutput(t, "!! U k.log  (conflict: the folder has its own, which was left out of the copy: `agbox apply` brings both together)\n",
		"agbox: 0 changes to the sandbox, 0 changes to the folder, 1 conflict.\nagbox: `agbox apply demo` merges the files in conflict into the folder.\n")
	wantFile(t, filepath.Join(dir, "k.log"), "of the folder\n")
}

// Whoever moves the folder is told how its work comes home.
func TestWorkOfAFolderThatWasMovedComesHome(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.repository(t, map[string]string{"f": "1\n"})
	moved := dir + "-moved"
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "echo 2 > /workspace/f")
	change(t, os.Rename(dir, moved))
	says := "agbox: The folder " + dir + ", which was copied in, is not there. If it was moved, move it back, or make a link to it: `ln -s NEWPLACE " + dir + "`. `agbox cp` copies files of the sandbox to any folder.\n"
	for _, args := range [][]string{{"apply", "demo"}, {"apply", "demo", "--check"}, {"apply", "demo", "--branch", "fix"}, {"pull", "demo"}, {"sync", "demo"}} {
		in.Agbox(t, args...).Want(t, 4).WantOutput(t, "", says)
	}
	in.Must(t, "cp", "demo:/workspace/f", moved+"/copy")
	wantFile(t, filepath.Join(moved, "copy"), "2\n")
	change(t, os.Symlink(moved, dir))
	in.Must(t, "apply", "demo", "--branch", "fix")
	harness.WantSame(t, "the branch", gitIn(t, moved, "show", "fix:f"), "2\n")
	in.Must(t, "apply", "demo")
	wantFile(t, filepath.Join(moved, "f"), "2\n")
	in.inside(t, "demo", "echo 3 > /workspace/f")
	in.Must(t, "sync", "demo")
	wantFile(t, filepath.Join(moved, "f"), "3\n")
	change(t, os.Remove(dir), os.Rename(moved, dir))
	in.inside(t, "demo", "echo 4 > /workspace/f")
	in.Must(t, "apply", "demo")
	wantFile(t, filepath.Join(dir, "f"), "4\n")
}
