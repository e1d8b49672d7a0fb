package e2e

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

// removeBuilt removes the images whose label "who" is as given.
func removeBuilt(t *testing.T, who string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), harness.Patience)
		defer cancel()
		all, err := harness.DockerAPI.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("label", "who="+who))})
		if err != nil {
			t.Error(err)
		}
		// An image goes after those that were made from it.
		for removed := true; removed && len(all) > 0; {
			removed = false
			for _, i := range all {
				if _, failed := harness.DockerAPI.ImageRemove(ctx, i.ID, image.RemoveOptions{Force: true, PruneChildren: true}); failed != nil {
					err = failed
					continue
				}
				all = slices.DeleteFunc(slices.Clone(all), func(other image.Summary) bool { return other.ID == i.ID })
				removed = true
			}
		}
		if len(all) > 0 {
			t.Errorf("%d images stay: %v", len(all), err)
		}
	})
}

func TestAFileThatBuildsItsImagesMakesASandbox(t *testing.T) {
	t.Parallel()
	who := strings.ToLower(ids.New())
	removeBuilt(t, who)
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{
		"agbox.yaml":    "build: {context: ., args: {WHO: " + who + "}}\nservices: [{name: web, build: {context: ., args: {WHO: " + who + "}}, command: [sleep, '1000000']}]\n",
		"Dockerfile":    "FROM " + harness.ImageBusybox + "\nARG WHO\nLABEL who=$WHO\nCOPY . /files\nRUN echo \"built for $WHO\" > /who\n",
		"a.txt":         "a",
		"secret/key":    "",
		".dockerignore": "secret\n",
	})
	file := filepath.Join(dir, "agbox.yaml")
	events := in.Start(t, "events", "-f", "-o", "json")
	in.Must(t, "create", "one", "--trust", "-f", file)
	in.Agbox(t, "exec", "one", "--", "sh", "-c", "cat /who /files/a.txt; ls /files").Want(t, 0).WantOutput(t, "built for "+who+"\naDockerfile\na.txt\nagbox.yaml\n", "")
	events.AwaitOutput(t, "Step ")
	events.Signal(t, syscall.SIGTERM)
	events.Wait(t)
	// Nothing is built again for another sandbox.
	in.Must(t, "create", "two", "--trust", "-f", file)
	if out := in.Must(t, "events", "two", "-o", "json"); !strings.Contains(out, "SANDBOX_READY") || strings.Contains(out, "Step ") {
		t.Errorf("the image was built again:\n%s", out)
	}
	if table := in.Must(t, "ls"); !strings.Contains(table, "build of project") {
		t.Errorf("ls shows\n%s", table)
	}
}

func TestABuildGoesOnThoughTheDaemonIsKilled(t *testing.T) {
	t.Parallel()
	who := strings.ToLower(ids.New())
	removeBuilt(t, who)
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{
		"Dockerfile": "FROM " + harness.ImageBusybox + "\nLABEL who=" + who + "\nRUN echo begun; sleep 2; echo done > /made\n",
	})
	in.write(t, "project", map[string]string{"agbox.yaml": "build: .\n"})
	in.Must(t, "daemon", "start")
	kill := in.AimAtDaemon(t)
	events := in.Start(t, "events", "-f", "-o", "json")
	waiting := in.Start(t, "create", "demo", "--trust", "-f", filepath.Join(dir, "agbox.yaml"))
	events.AwaitOutput(t, "Step ")
	kill()
	waiting.Wait(t).Want(t, 0)
	events.Signal(t, syscall.SIGTERM)
	events.Wait(t)
	in.Agbox(t, "exec", "demo", "--", "cat", "/made").Want(t, 0).WantOutput(t, "done\n", "")
}

func TestAFailedBuildTellsWhatItPrinted(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{
		"Dockerfile": "FROM " + harness.ImageBusybox + "\nRUN echo the disk is purple; exit 3\n", "agbox.yaml": "build: .\n",
	})
	r := in.Agbox(t, "create", "--trust", "-f", filepath.Join(dir, "agbox.yaml")).Want(t, 1)
	for _, want := range []string{"The image could not be built", "the disk is purple", "was removed"} {
		if !strings.Contains(r.Stderr, want) {
			t.Errorf("the error lacks %q:\n%s", want, r.Stderr)
		}
	}
}
