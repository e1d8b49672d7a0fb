package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/badspecs"
)

// write makes files below the folder of the install and returns that folder.
func (in *install) write(t *testing.T, folder string, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(in.Home, folder)
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestEveryBadSpecIsRefusedWithItsLineAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	c := in.Client(t)
	cases, err := badspecs.All()
	if err != nil {
		t.Fatal(err)
	}
	dir := in.write(t, "project", map[string]string{"README": ""})
	file := filepath.Join(dir, "agbox.yaml")
	for _, bad := range cases {
		t.Run(bad.Name, func(t *testing.T) {
			in.write(t, "project", map[string]string{"agbox.yaml": bad.YAML})
			r := in.Agbox(t, "create", "-f", file).Want(t, 2)
			lines := strings.Split(strings.TrimSuffix(r.Stderr, "\n"), "\n")
			if r.Stdout != "" || len(lines) != len(bad.Want) {
				t.Fatalf("stdout %q, stderr %q, want %d problems", r.Stdout, r.Stderr, len(bad.Want))
			}
			for i, want := range bad.Want {
				line := strings.ReplaceAll(lines[i], file, "agbox.yaml")
				if !strings.HasPrefix(line, fmt.Sprintf("agbox: agbox.yaml:%d:", want.Line)) || !strings.HasSuffix(line, ".") ||
					!strings.Contains(line, want.Field) || !strings.Contains(line, want.Says) {
					t.Errorf("%q, want %+v", line, want)
				}
			}
			// The same over the API, without ResolveSpec before.
			_, err := c.CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{ConfigYaml: []byte(bad.YAML), ConfigDir: dir, HomeDir: in.Home})
			var failure *client.Error
			if !errors.As(err, &failure) || !errors.Is(err, client.ErrInvalid) || len(failure.Problems) != len(bad.Want) || failure.Problems[0].GetLine() != bad.Want[0].Line {
				t.Errorf("the API says %v", err)
			}
		})
	}
	if boxes := in.list(t, "--deleted"); len(boxes) != 0 {
		t.Errorf("ls --deleted shows %v, want nothing", boxes)
	}
	if inv := in.Inventory(t); len(inv.Containers)+len(inv.Networks)+len(inv.Volumes) != 0 {
		t.Errorf("the engine has %+v, want nothing", inv)
	}
	if logs, _ := filepath.Glob(filepath.Join(in.Home, "data", "exec-logs", "*")); len(logs) != 0 {
		t.Errorf("there are log folders: %v", logs)
	}
}

func TestWhatConfigShowsIsWhatIsStored(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{
		"common.yaml": "image: nosuch\nenvs: {A: base, B: base, C: base}\nidle_ttl: 1h\npost_create: [\"echo one >/tmp/made\"]\n",
		"agbox.yaml":  "base: common.yaml\nimage: " + harness.ImageBusybox + "\nenvs: {B: file, C: file}\npost_create: [\"echo two >>/tmp/made\"]\nlabels: {team: red}\n",
	})
	args := []string{"-f", filepath.Join(dir, "agbox.yaml"), "-e", "C=flag", "--post-create", "echo three >>/tmp/made"}
	shown := in.Must(t, append([]string{"config", "show"}, args...)...)
	id := in.Must(t, append([]string{"create"}, args...)...)
	stored, err := in.Client(t).GetSandbox(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	// agbox adds these two to what the file says.
	made := stored.GetCreateSpec()
	made.Name = ""
	delete(made.Labels, "agbox.folder")
	delete(made.Labels, "agbox.folder-id")
	again := in.write(t, "again", map[string]string{"shown.yaml": shown})
	resolved, err := client.SpecFiles{File: filepath.Join(again, "shown.yaml")}.Request()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := in.Client(t).ResolveSpec(harness.Bounded(t), resolved)
	if err != nil || !proto.Equal(answer.GetCreateSpec(), made) {
		t.Errorf("shown:\n%s\nstored: %v, %v", shown, made, err)
	}
	in.Agbox(t, "exec", id, "--", "sh", "-c", "echo $A $B $C; cat /tmp/made").Want(t, 0).WantOutput(t, "base file flag\none\ntwo\nthree\n", "")
	in.Agbox(t, "create", "again", "--image", harness.ImageBusybox, "--", "").Want(t, 2)
}

func TestAStarterFileIsValid(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"README": ""})
	run := func(args ...string) harness.Result {
		p := in.Command(t.Context(), "agbox", args...)
		p.Dir = dir
		var out, errs strings.Builder
		p.Stdout, p.Stderr = &out, &errs
		_ = p.Run() // the exit code is checked
		return harness.Result{Args: args, Stdout: out.String(), Stderr: errs.String(), Code: p.ProcessState.ExitCode()}
	}
	run("init").Want(t, 0)
	run("init").Want(t, 4)
	r := run("config", "validate").Want(t, 0)
	if !strings.Contains(r.Stderr, "Using the agbox.yaml in this folder") || !strings.Contains(r.Stdout, "debian:12") {
		t.Errorf("stdout %q, stderr %q", r.Stdout, r.Stderr)
	}
}

func TestTheExamplesOfTheDocumentMakeSandboxes(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := filepath.Join(in.Home, "project")
	if err := os.CopyFS(dir, os.DirFS("../docs/examples")); err != nil {
		t.Fatal(err)
	}
	in.write(t, "project", map[string]string{"testdata/file": "hello", "out/x": "", "config.toml": "a = 1", "task.md": ""})
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	checks := map[string]string{
		"sandbox.yaml": "id -u; echo $GREETING; pwd", "base.yaml": "wget -q -O /dev/null http://web/ 2>/dev/null; echo $ROLE $PROJECT",
		"mounts.yaml": "cat /testdata/file; ! touch /testdata/x 2>/dev/null && touch /out/y && echo", "copies.yaml": "cat /etc/app/config.toml /testdata/file; stat -c %u /testdata/file",
		"tmpfs.yaml": "stat -c %a /private", "volumes.yaml": "while [ ! -s /data/started ]; do sleep 0.05; done; echo shared", "services.yaml": "cat /tmp/page", "workspace.yaml": "test -e /src/config.toml && echo here",
		"limits.yaml": "ulimit -n", "features.yaml": "cat /etc/greeting",
	}
	wants := map[string]string{
		"sandbox.yaml": "1000\nhello\n/tmp\n", "base.yaml": "app project\n", "mounts.yaml": "hello\n", "copies.yaml": "a = 1hello1000\n", "tmpfs.yaml": "700\n",
		"volumes.yaml": "shared\n", "services.yaml": "hello\n", "workspace.yaml": "here\n", "limits.yaml": "1024\n", "features.yaml": "hello\n",
	}
	for _, file := range files {
		name := filepath.Base(file)
		if name == "compose.yaml" || name == "tools.yaml" {
			continue // a base of another example, or one that the host does not allow
		}
		t.Run(name, func(t *testing.T) {
			id := in.Must(t, "create", "--trust", "-f", file)
			if check := checks[name]; check != "" {
				in.Agbox(t, "exec", id, "--", "sh", "-c", check).Want(t, 0).WantOutput(t, wants[name], "")
			}
			in.Must(t, "rm", "-f", id)
		})
	}
}

func TestAComposeFileAsPeopleWriteItMakesAWorkingSandbox(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "shop", map[string]string{
		".env": "TAG=latest\nGREETING=\"hello shop\"\n",
		"compose.yaml": `
version: "3.9"
x-common: &common
  restart: unless-stopped
services:
  app:
    <<: *common
    x-agbox: primary
    image: agbox-test/busybox:${TAG}
    working_dir: /app
    environment:
      GREETING: ${GREETING:?say hello}
      LEVEL: ${LEVEL:-debug}
    volumes:
      - .:/app:ro
      - shared:/shared
    depends_on:
      web: {condition: service_healthy}
  web:
    <<: *common
    image: agbox-test/busybox
    command: sh -c "echo $$GREETING > /shared/index.html; exec httpd -f -p 80 -h /shared"
    environment: ["GREETING=from web"]
    volumes: ["shared:/shared"]
    healthcheck:
      test: ["CMD-SHELL", "wget -q -O /dev/null http://127.0.0.1/"]
      interval: 500ms
      retries: 20
    expose: [80]
volumes:
  shared:
`,
	})
	r := in.Agbox(t, "create", "shop", "--trust", "--compose", filepath.Join(dir, "compose.yaml")).Want(t, 0)
	if !strings.Contains(r.Stderr, "Volumes last as long as the sandbox") {
		t.Errorf("stderr %q", r.Stderr)
	}
	in.Agbox(t, "exec", "shop", "--", "sh", "-c", "pwd; echo $GREETING $LEVEL; wget -q -O - http://web/; cat /shared/index.html; head -n 1 .env").
		Want(t, 0).WantOutput(t, "/app\nhello shop debug\nfrom web\nfrom web\nTAG=latest\n", "")
}

func TestADevcontainerAsPeopleWriteItMakesAWorkingSandbox(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "site", map[string]string{
		"package.json": "{}",
		".devcontainer/devcontainer.json": `// For format details, see https://aka.ms/devcontainer.json.
{
	"name": "Site",
	"image": "agbox-test/user:latest",
	/* "features": {}, */
	"containerEnv": { "PROJECT": "${localWorkspaceFolderBasename}", "WHO": "${localEnv:NOBODY:someone}" },
	"mounts": [
		"source=${localWorkspaceFolder}/.cache,target=/cache,type=bind,consistency=cached",
		{ "type": "tmpfs", "target": "/scratch" },
	],
	"forwardPorts": [],
	"onCreateCommand": "echo one > /tmp/made",
	"postCreateCommand": ["sh", "-c", "echo two $PROJECT >> /tmp/made"],
	"customizations": { "vscode": { "extensions": ["golang.go"] } },
	"workspaceFolder": "/work/${localWorkspaceFolderBasename}",
	"remoteUser": "root",
}
`,
		".cache/kept": "kept",
	})
	r := in.Agbox(t, "create", "site", "--trust", "--devcontainer", filepath.Join(dir, ".devcontainer", "devcontainer.json")).Want(t, 0)
	if !strings.Contains(r.Stderr, "customizations is not supported and was left out") {
		t.Errorf("stderr %q", r.Stderr)
	}
	in.Agbox(t, "exec", "site", "--", "sh", "-c", "pwd; id -u; echo $WHO; cat /tmp/made /cache/kept; touch inside && ls; touch /scratch/x").
		Want(t, 0).WantOutput(t, "/work/site\n0\nsomeone\none\ntwo site\nkeptinside\npackage.json\n", "")
}
