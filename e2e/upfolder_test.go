package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

func TestUpCopiesTheFolderUnlessTheFileSaysOtherwise(t *testing.T) {
	t.Parallel()
	who := strings.ToLower(ids.New())
	removeBuilt(t, who)
	in := newInstall(t)
	dir := in.write(t, "shop", map[string]string{
		"compose.yaml": "services:\n  web: {build: .}\n", "notes": "mine\n",
		"Dockerfile": "FROM " + harness.ImageBusybox + "\nLABEL who=" + who + "\nWORKDIR /srv\nCMD [\"sh\", \"-c\", \"pwd > where; exec sleep 1000000\"]\n",
	})
	made := in.from(t, dir, nil, "up", "--trust").Want(t, 0)
	if !strings.Contains(made.Stderr, "Copying this folder to /workspace in the sandbox. `agbox diff shop`") {
		t.Errorf("up says %q", made.Stderr)
	}
	if got := in.inside(t, "shop", "pwd; cat notes; until [ -s /srv/where ]; do sleep 0.1; done; cat /srv/where; echo yours > notes"); got != "/workspace\nmine\n/srv\n" {
		t.Errorf("inside: %q", got)
	}
	if again := in.from(t, dir, nil, "up").Want(t, 0); again.Stdout != made.Stdout || strings.Contains(again.Stderr, "Copying") {
		t.Errorf("again, up says %q and %q", again.Stdout, again.Stderr)
	}
	in.Must(t, "apply", "shop")
	wantFile(t, filepath.Join(dir, "notes"), "yours\n")
	image := "image: " + harness.ImageBusybox + "\n"
	for name, c := range map[string]struct {
		file, text string
		flags      []string
		inside     string // what the sandbox finds in /workspace, and what up says about it
		says       string
	}{
		"flag":    {file: "agbox.yaml", text: image, flags: []string{"--no-workspace"}},
		"mounted": {file: "agbox.yaml", text: image + "mounts: [\".:/here\"]\n"},
		"occupied": {
			file: "agbox.yaml", text: image + "mounts: [\"./sub:/workspace\"]\n", inside: "file\n",
			says: "This folder is not copied into the sandbox. The file puts something else at /workspace.",
		},
		"named":     {file: "agbox.yaml", text: image + "workspace: {source: sub}\n", inside: "file\n"},
		"container": {file: ".devcontainer.json", text: `{"image": "` + harness.ImageBusybox + `", "workspaceMount": ""}`},
		"less":      {file: "agbox.yaml", text: image, flags: []string{"--exclude", "sub"}, inside: "agbox.yaml\n", says: "Copying this folder to /workspace"},
	} {
		dir := in.write(t, name, map[string]string{c.file: c.text, "sub/file": ""})
		r := in.from(t, dir, nil, append([]string{"up", "--trust"}, c.flags...)...).Want(t, 0)
		if c.says == "" && (strings.Contains(r.Stderr, "Copying") || strings.Contains(r.Stderr, "is not copied")) || !strings.Contains(r.Stderr, c.says) {
			t.Errorf("%s: up says %q", name, r.Stderr)
		}
		if got := in.inside(t, name, "ls /workspace 2>/dev/null || :"); got != c.inside {
			t.Errorf("%s: in /workspace there is %q, want %q", name, got, c.inside)
		}
	}
}
