package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

func TestBuildMakesTheImagesAndNoSandbox(t *testing.T) {
	t.Parallel()
	who := strings.ToLower(ids.New())
	removeBuilt(t, who)
	in := newInstall(t)
	dockerfile := "FROM " + harness.ImageBusybox + "\nARG PART\nLABEL who=" + who + " part=$PART\n"
	dir := in.write(t, "shop", map[string]string{
		"agbox.yaml": "build: {context: .}\nservices: [{name: web, build: {context: ., args: {PART: web}}, command: [sleep, '1000000']}, {name: db, image: " + harness.ImageBusybox + "}]\n",
		"Dockerfile": dockerfile,
	})
	first := in.from(t, dir, nil, "build", "--trust").Want(t, 0)
	if !regexp.MustCompile(`^primary sha256:[0-9a-f]{64}\nweb sha256:[0-9a-f]{64}\n$`).MatchString(first.Stdout) || !strings.Contains(first.Stderr, "web: Step ") {
		t.Errorf("build says %q and %q", first.Stdout, first.Stderr)
	}
	again := in.from(t, dir, nil, "build", "--trust", "agbox.yaml").Want(t, 0)
	if again.Stdout != first.Stdout || strings.Contains(again.Stderr, "Step ") {
		t.Errorf("again, build says %q and %q", again.Stdout, again.Stderr)
	}
	if boxes := in.Must(t, "ls", "-q"); boxes != "" {
		t.Errorf("there are the sandboxes %s", boxes)
	}
	in.write(t, "shop", map[string]string{"Dockerfile": dockerfile + "RUN echo no >&2; false\n"})
	if r := in.from(t, dir, nil, "build", "--trust").Want(t, 4); !strings.Contains(r.Stderr, "no\n") {
		t.Errorf("a build that fails says %q", r.Stderr)
	}
	plain := in.write(t, "plain", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\n"})
	if r := in.from(t, plain, nil, "build", "--trust").Want(t, 0); r.Stdout != "" || !strings.Contains(r.Stderr, "builds no image.") {
		t.Errorf("without a build: %q and %q", r.Stdout, r.Stderr)
	}
}
