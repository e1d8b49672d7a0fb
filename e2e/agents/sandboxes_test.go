package agents

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// household makes a project folder whose agent may spawn others, with a file.
func household(t *testing.T, image, more string) string {
	t.Helper()
	if image != "" {
		more += "image: " + image + "\n"
	}
	dir := project(t, "memory_limit: 512m\npids_limit: 500\nagent: {may_spawn: {depth: 2}, cleanup_after: 0s, retry: {attempts: 1}}\n"+more)
	if err := os.WriteFile(filepath.Join(dir, "task"), []byte("of the host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAChildWorksInASandboxOfItsOwn copies the workspace as it is in the container of the parent
// when spawn returns: what either changes afterwards is not the other's.
func TestAChildWorksInASandboxOfItsOwn(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := household(t, harness.ImageBusybox, "workspace: {source: .}\nenvs: {API_KEY: canary}\n")
	id := spawn(t, in, `set -e
		echo mine > task; mkdir sub; ln -s /etc/hostname sub/link; mkfifo pipe; echo x > '-odd name'
		child=$(agbox-agent spawn --name child --sandbox new --memory 256m --pids 50 --key 1 -- sh -c '
			[ "$(cat task)" = mine ] && [ "$(readlink sub/link)" = /etc/hostname ] && [ "$(cat ./-odd\ name)" = x ] && [ ! -e pipe ] || exit 90
			[ ! -e /tmp/of-parent ] && [ $API_KEY = canary ] || exit 91
			echo theirs > task
			agbox-agent send parent ready; agbox-agent done complete')
		echo later > task
		agbox-agent wait "$child"; [ "$(cat task)" = later ]
		agbox-agent done complete`, "boss", "-f", filepath.Join(dir, "agbox.yaml"))
	boss := await(t, in, id, "COMPLETED")
	child := await(t, in, "child", "COMPLETED")
	if !child.GetOwned() || child.GetSandboxId() == boss.GetSandboxId() || child.GetSandboxId() != "agent-"+child.GetAgentId() {
		t.Errorf("the child ran in %s, its parent in %s", child.GetSandboxId(), boss.GetSandboxId())
	}
	in.Must(t, "apply", boss.GetSandboxId())
	for _, id := range []string{child.GetSandboxId(), boss.GetSandboxId()} {
		if err := in.Client(t).WaitDeleted(harness.Bounded(t), id); err != nil {
			t.Error(err)
		}
	}
}

// TestTheWorkOfAChildComesHomeAsItsRefusalSays: nothing compares the copy of a copy, but the two
// commands of the refusal bring it to the parent, whose work is reviewed.
func TestTheWorkOfAChildComesHomeAsItsRefusalSays(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := household(t, harness.ImageBusybox, "workspace: {source: .}\n")
	spawn(t, in, `agbox-agent spawn --name child --sandbox new -- sh -c 'echo theirs > task; echo ready; sleep 1000'; sleep 1000`,
		"boss", "-f", filepath.Join(dir, "agbox.yaml"))
	child := in.AgentID(t, awaitNamed(t, in, "child"))
	harness.Eventually(t, "the child has worked", func() bool { return in.Agbox(t, "agent", "logs", child).Stdout == "ready\n" })
	var remedy []string
	for _, words := range [][]string{{"diff"}, {"apply"}, {"pull"}, {"sync"}} {
		refusal := in.Agbox(t, append(words, "agent-"+child)...).Want(t, 4).Stderr
		remedy = regexp.MustCompile("`agbox ([^`]*)`").FindAllString(refusal, -1)
		if len(remedy) != 2 || !strings.Contains(refusal, "is a copy of that of its parent, agent "+in.AgentID(t, "boss")) {
			t.Fatalf("%s: %s", words[0], refusal)
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	for _, command := range remedy {
		words := strings.Fields(strings.ReplaceAll(strings.Trim(command, "`"), "FOLDER", out))
		in.Must(t, append(words[1:], "--yes-executable")...) // nobody is there to be asked about its agbox.yaml
	}
	boss, err := in.Client(t).GetAgent(harness.Bounded(t), in.AgentID(t, "boss"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := in.Must(t, "diff", boss.GetSandboxId()); !strings.Contains(diff, "-of the host\n+theirs") {
		t.Errorf("the work of the parent is\n%s", diff)
	}
	in.Must(t, "apply", boss.GetSandboxId())
	if home, err := os.ReadFile(filepath.Join(dir, "task")); string(home) != "theirs\n" {
		t.Errorf("the folder has %q, %v", home, err)
	}
}

// TestTheBorderOfAStackIsShown: by default it protects, and where it only orders, the answer, the
// tree and inspect say so.
func TestTheBorderOfAStackIsShown(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `
		agbox-agent spawn --class worker --name walled --stack a -- sleep 1000 2> /tmp/walled || exit 90
		agbox-agent spawn --class worker --name open --stack b --sandbox shared -- sleep 1000 2> /tmp/open || exit 91
		[ ! -s /tmp/walled ] && grep -q "orders and does not protect" /tmp/open || exit 92
		echo up; sleep 1000`, "boss", "--in", "demo", "--may-spawn", "worker")
	harness.Eventually(t, "both are spawned", func() bool { return strings.Contains(in.Agbox(t, "agent", "logs", id).Stdout, "up") })
	for name, border := range map[string]agboxv1.StackBorder{
		"walled": agboxv1.StackBorder_STACK_BORDER_PROTECTS, "open": agboxv1.StackBorder_STACK_BORDER_ORDERS, "boss": 0,
	} {
		a, err := in.Client(t).GetAgent(harness.Bounded(t), in.AgentID(t, name))
		if err != nil || a.GetBorder() != border || a.GetOwned() != (name == "walled") {
			t.Errorf("%s: %v, owned %v, %v", name, a.GetBorder(), a.GetOwned(), err)
		}
	}
	if tree := in.Must(t, "agent", "tree"); strings.Count(tree, "orders and does not protect") != 1 {
		t.Errorf("the tree is\n%s", tree)
	}
	in.Must(t, "agent", "kill", "--tree", "--now", id)
	await(t, in, "walled", "ABORTED")
}

// withGit makes a folder with the git of this machine, for an image: the test images have none.
func withGit(t *testing.T, dir string) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal("the tests need git, as make does: ", err)
	}
	libs, err := exec.CommandContext(t.Context(), "ldd", git).Output()
	if err != nil {
		t.Fatal("the libraries of git: ", err)
	}
	files := map[string]string{git: "bin/git"}
	for _, word := range strings.Fields(string(libs)) {
		if strings.HasPrefix(word, "/") && strings.Contains(word, ".so") && !strings.Contains(word, "libc.so") && !strings.Contains(word, "ld-linux") {
			files[word] = "lib/x86_64-linux-gnu/" + filepath.Base(word)
		}
	}
	for from, to := range files {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(dir, to)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestAChildWorksOnABranch has a repository with uncommitted work.
func TestAChildWorksOnABranch(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := household(t, "", "workspace: {source: ., exclude_patterns: [/git]}\nbuild: {context: ./git, dockerfile_inline: 'FROM "+harness.ImageDebian+"\n\n  COPY . /usr/'}\n")
	withGit(t, filepath.Join(dir, "git"))
	id := spawn(t, in, `set -e
		export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
		git init -q -b main . ; git add task; git commit -qm one; echo work > task
		agbox-agent spawn --name part-1 --sandbox new --workspace branch -- sh -c '
			set -e; [ "$(git branch --show-current)" = agbox/part-1 ]; [ "$(cat task)" = work ]; [ "$(git status --porcelain -uno)" = " M task" ]
			git -c user.name=a -c user.email=a@b commit -qam two; [ "$(git log --oneline | wc -l)" = 2 ]; agbox-agent done complete'
		agbox-agent wait part-1; [ "$(git branch --show-current)" = main ]; [ "$(git log --oneline | wc -l)" = 1 ]
		agbox-agent done complete`, "boss", "--trust", "-f", filepath.Join(dir, "agbox.yaml"))
	await(t, in, id, "COMPLETED")
	await(t, in, "part-1", "COMPLETED")
}

// TestAChildSharesAMountedWorkspace, and a mount, as far as its parent may write there.
func TestAChildSharesAMountedWorkspace(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := household(t, harness.ImageBusybox, "")
	id := spawn(t, in, `
		agbox-agent spawn --name child --sandbox new --workspace shared --share-mount /data -- sh -c '
			echo shared > task && [ -e /data/x ] && ! touch /data/y && agbox-agent done complete' || exit 90
		agbox-agent wait child; [ "$(cat task)" = shared ] && [ ! -e /data/y ] && agbox-agent done complete`,
		"boss", "-f", filepath.Join(dir, "agbox.yaml"), "--mount", data+":/data:rw", "--mount-workspace", dir)
	await(t, in, id, "COMPLETED")
	await(t, in, "child", "COMPLETED")
}

// TestAChildsLostSandboxIsMadeAgain from what the parent has then. Without the sandbox of the
// parent the child goes on, and only if it loses its own, it ends.
func TestAChildsLostSandboxIsMadeAgain(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "task"), []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "demo", harness.ImageBusybox, "--workspace", dir)
	id := spawn(t, in, `agbox-agent spawn --class worker --name child --lifetime detached --sandbox new -- sh -c 'cat task; sleep 1000' || exit 90
		echo second > task; sleep 1000`, "boss", "--in", "demo", "--may-spawn", "worker")
	says := func(what string) {
		t.Helper()
		harness.Eventually(t, "the child says "+what, func() bool { return strings.HasSuffix(in.Agbox(t, "agent", "logs", "child").Stdout, what+"\n") })
	}
	child := awaitNamed(t, in, "child")
	says("first")
	lose := func() {
		t.Helper()
		a, err := in.Client(t).GetAgent(harness.Bounded(t), child)
		if err != nil {
			t.Fatal(err)
		}
		if err := harness.DockerAPI.ContainerRemove(harness.Bounded(t), runtime.PrimaryName(a.GetSandboxId()), container.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, "the parent has its answer", func() bool {
		return strings.TrimSpace(in.Agbox(t, "exec", "demo", "--", "cat", "/workspace/task").Stdout) == "second"
	})
	lose()
	says("second")
	in.Must(t, "rm", "-f", "--now", "demo")
	await(t, in, id, "FAILED")
	if a, err := in.Client(t).GetAgent(harness.Bounded(t), child); err != nil || a.GetWord() != "EXECUTING" || a.GetParent() != "init" {
		t.Errorf("without its parent the child is %v, %v", a, err)
	}
	lose()
	if a := await(t, in, "child", "FAILED"); !strings.Contains(a.GetMessage(), "whose sandbox is removed") {
		t.Errorf("it says %q", a.GetMessage())
	}
}
