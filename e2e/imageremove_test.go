package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestImagesGoUnlessASandboxUsesThem builds an image for a sandbox file. Other tests have images
// that agbox built too, so this one removes only its own.
func TestImagesGoUnlessASandboxUsesThem(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	list := func() []*agboxv1.Image {
		return decode(t, in.Must(t, "image", "ls", "-o", "json"), func() *agboxv1.Image { return new(agboxv1.Image) })
	}
	before := make(map[string]bool)
	for _, i := range list() {
		before[i.GetId()] = true
	}
	who := strings.ToLower(ids.New())
	dir := in.write(t, "project", map[string]string{"Dockerfile": "FROM " + harness.ImageBusybox + "\nENV WHO=" + who + "\n"})
	file := filepath.Join(in.Home, "box.yaml")
	if err := os.WriteFile(file, []byte("build:\n  context: "+dir+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	make1 := func() {
		t.Helper()
		in.Must(t, "create", "demo", "-f", file, "--trust")
		harness.WantSame(t, "its image", in.Must(t, "exec", "demo", "--", "sh", "-c", "echo $WHO"), who)
	}
	make1()
	// Others may build at the same time, so the image is found by what the container says.
	var name string
	mine := func() *agboxv1.Image {
		for _, i := range list() {
			if before[i.GetId()] || !i.GetBuilt() {
				continue
			}
			seen, err := harness.DockerAPI.ImageInspect(harness.Bounded(t), i.GetId())
			if err == nil && slices.Contains(seen.Config.Env, "WHO="+who) {
				name = i.GetNames()[0]
				return i
			}
		}
		return nil
	}
	if i := mine(); i == nil || !i.GetUsed() {
		t.Fatalf("the image is listed as %v", i)
	}
	in.Must(t, "stop", "demo")
	if r := in.Agbox(t, "image", "rm", name).Want(t, 4); !strings.Contains(r.Stderr, "is in use") {
		t.Errorf("image rm says %q", r.Stderr)
	}
	in.Must(t, "rm", "--wait", "-f", "demo")
	if i := mine(); i == nil || i.GetUsed() {
		t.Fatalf("after the sandbox, the image is listed as %v", i)
	}
	if r := in.Agbox(t, "image", "prune").Want(t, 2); !strings.Contains(r.Stderr, "Without a terminal agbox image prune needs -f") {
		t.Errorf("image prune says %q", r.Stderr)
	}
	c := in.Client(t)
	if err := c.RemoveImage(harness.Bounded(t), harness.ImageBusybox, true); err == nil {
		t.Error("an image that agbox has not built is removed as unused")
	}
	harness.WantSame(t, "image rm", in.Must(t, "image", "rm", name), name)
	if i := mine(); i != nil {
		t.Errorf("it is still there: %v", i)
	}
	in.Agbox(t, "image", "rm", name).Want(t, 3)
	make1() // built again
	in.Must(t, "rm", "-f", "demo")
	in.Must(t, "image", "rm", name)
}
