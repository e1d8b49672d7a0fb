package attacks

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/go-connections/nat"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

// link begins the content of a file that build makes a symbolic link.
const link = "-> "

// images are those of one test. Call imagesOf before harness.New, so that the images are
// removed after the containers that use them.
type images struct {
	t     *testing.T
	names []string
}

func imagesOf(t *testing.T) *images {
	i := &images{t: t}
	t.Cleanup(i.remove)
	return i
}

func (i *images) remove() {
	// The test's own context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(i.t.Context()), harness.Patience)
	defer cancel()
	for _, name := range i.names {
		if _, err := harness.DockerAPI.ImageRemove(ctx, name, image.RemoveOptions{}); err != nil {
			i.t.Error(err)
		}
	}
}

// build makes an image: busybox with other settings, programs and links.
func (i *images) build(config container.Config, files map[string]string) string {
	t := i.t
	t.Helper()
	ctx, api := harness.Bounded(t), harness.DockerAPI
	made, err := api.ContainerCreate(ctx, &container.Config{Image: harness.ImageBusybox}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := api.ContainerRemove(harness.Bounded(t), made.ID, container.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	}()
	if err := api.CopyToContainer(ctx, made.ID, "/", bytes.NewReader(archiveOf(t, files)), container.CopyToContainerOptions{}); err != nil {
		t.Fatal(err)
	}
	name := "agbox-test/hostile-" + ids.New() + ":latest"
	if _, err := api.ContainerCommit(ctx, made.ID, container.CommitOptions{Reference: name, Config: &config}); err != nil {
		t.Fatal(err)
	}
	i.names = append(i.names, name)
	return name
}

func archiveOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h, content := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, files[name]
		if to, ok := strings.CutPrefix(content, link); ok {
			h.Typeflag, h.Linkname, content = tar.TypeSymlink, to, ""
		}
		h.Size = int64(len(content))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestSettingsOfAnImageDoNotChangeTheSupervisor(t *testing.T) {
	t.Parallel()
	Row(t, 80, "ENTRYPOINT, USER, WORKDIR, STOPSIGNAL, HEALTHCHECK, ONBUILD and LD_PRELOAD of an image")
	Row(t, 81, "EXPOSE of an image")
	hostile := imagesOf(t).build(container.Config{
		Entrypoint: []string{"/bin/sh", "-c", "touch /was-executed; exec sleep 1000"}, User: "1234:1234", WorkingDir: "/proc/1/root",
		Env: []string{"LD_PRELOAD=/evil.so", "LD_LIBRARY_PATH=/evil", "PATH=/evil:/bin"}, StopSignal: "SIGSTOP",
		Healthcheck: &container.HealthConfig{Test: []string{"CMD", "touch", "/health"}, Interval: time.Second},
		OnBuild:     []string{"RUN touch /was-built"}, ExposedPorts: nat.PortSet{"22/tcp": {}, "8080/tcp": {}},
	}, nil)
	in := harness.New(t)
	in.Create(t, "box", hostile)
	pid, program := firstProcess(t, in)
	if want := digest(t, filepath.Join(in.Bin, "agbox-init")); program != want {
		t.Errorf("PID 1 executes %s, want %s", program, want)
	}
	for file, want := range map[string]string{"status": "\t0\t0\t0\nGid:", "cmdline": "/.agbox/init\x00"} {
		if said := in.Must(t, "exec", "-w", "/", box, "--", "cat", "/proc/1/"+file); !strings.Contains(said, want) {
			t.Errorf("the %s of PID 1 is %q, want %q in it", file, said, want)
		}
	}
	wantStatic(t, fmt.Sprintf("/proc/%d/exe", pid))
	seen, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), in.Inventory(t).Containers[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if seen.Config.StopSignal != "SIGTERM" || seen.Config.WorkingDir != "/" || !slices.Equal(seen.Config.Healthcheck.Test, []string{"NONE"}) {
		t.Errorf("the container has the signal %s, the folder %s and the check %q", seen.Config.StopSignal, seen.Config.WorkingDir, seen.Config.Healthcheck.Test)
	}
	for port, bindings := range seen.NetworkSettings.Ports {
		if len(bindings) > 0 {
			t.Errorf("port %s is published at %v", port, bindings)
		}
	}
	if said := in.Must(t, "exec", "-w", "/", box, "--", "sh", "-c", "echo $(id -u) $LD_PRELOAD; test ! -e /was-built"); said != "1234 /evil.so" {
		t.Errorf("a command says %q", said)
	}
}

// box is the name of the sandbox of a test.
const box = "box"

// wantStatic requires that a program has no interpreter, so LD_PRELOAD does not apply to it.
func wantStatic(t *testing.T, path string) {
	t.Helper()
	program, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, part := range program.Progs {
		if part.Type == elf.PT_INTERP {
			t.Errorf("%s is not a static program", path)
		}
	}
}

func TestLabelsOfAnImageDoNotMakeItAnothersSandbox(t *testing.T) {
	t.Parallel()
	Row(t, 82, "LABELs of an image that name another sandbox of the install")
	made, in := imagesOf(t), harness.New(t)
	other := in.Create(t, "victim", harness.ImageBusybox)
	victim, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), in.Inventory(t).Containers[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	liar := in.Create(t, "liar", made.build(container.Config{Labels: victim.Config.Labels}, nil))
	if victim.Config.Labels["agbox.sandbox-id"] != other {
		t.Fatalf("the labels are %v", victim.Config.Labels)
	}
	for _, c := range in.Inventory(t).Containers {
		if c.ID != victim.ID && (c.Identity.SandboxID != liar || c.Identity.Nonce == victim.Config.Labels["agbox.nonce"]) {
			t.Errorf("the container of the image has the identity %+v", c.Identity)
		}
	}
	in.Must(t, "rm", "--wait", "-f", "liar")
	if said := in.Must(t, "exec", "victim", "--", "echo", "well"); said != "well" {
		t.Errorf("the other sandbox says %q", said)
	}
}

func TestVolumesOfAnImageHideNothingAndGoWithTheSandbox(t *testing.T) {
	t.Parallel()
	Row(t, 83, "VOLUMEs of an image at the places of agbox")
	hostile := imagesOf(t).build(container.Config{Volumes: map[string]struct{}{"/.agbox": {}, "/.agbox/link": {}, "/var/log/agents-sandbox": {}, "/bin": {}}}, nil)
	in := harness.New(t)
	in.Create(t, box, hostile)
	if _, program := firstProcess(t, in); program != digest(t, filepath.Join(in.Bin, "agbox-init")) {
		t.Errorf("PID 1 executes %s", program)
	}
	harness.WantSame(t, "a command", inside(t, in, box, "echo well"), "well\n")
	seen, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), in.Inventory(t).Containers[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	in.Must(t, "rm", "--wait", "-f", box)
	for _, m := range seen.Mounts {
		if m.Name == "" {
			continue
		}
		if _, err := harness.DockerAPI.VolumeInspect(harness.Bounded(t), m.Name); err == nil {
			t.Errorf("the volume at %s is left", m.Destination)
		}
	}
}

func TestLinksOfAnImageDoNotLeadMountsToTheHost(t *testing.T) {
	t.Parallel()
	Row(t, 84, "links of an image at the places of agbox and of mounts lead to the host")
	made, in := imagesOf(t), harness.New(t)
	target := filepath.Join(in.Home, "target")
	out := link + strings.Repeat("../", 12) + target[1:]
	mine := write(t, in, "mine", map[string]string{"a": "mine\n"})
	hostile := made.build(container.Config{}, map[string]string{".agbox": out, "var/log": out, "x": out})
	r := in.Agbox(t, "create", box, "--image", hostile, "--mount", mine+":/x/deep")
	if r.Code == 0 {
		harness.WantSame(t, "the mount", inside(t, in, box, "cat /x/deep/a"), "mine\n")
	} else if !strings.HasPrefix(r.Stderr, "agbox: ") {
		t.Errorf("create gives %d: %q", r.Code, r.Stderr)
	}
	if _, err := os.Lstat(target); err == nil {
		t.Errorf("%s was made on the host", target)
	}
}
