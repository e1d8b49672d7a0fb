package docker

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"go.uber.org/goleak"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testImage has busybox's commands.
const testImage = "agbox-test/busybox:latest"

func TestDockerConforms(t *testing.T) {
	runtimetest.RunConformance(t, newHarness)
}

func newHarness(t *testing.T) runtimetest.Harness {
	e, install := testEngine(t)
	return runtimetest.Harness{
		Engine:         e,
		InstallID:      install,
		Image:          testImage,
		Foreign:        foreignContainer,
		ForeignNetwork: foreignNetwork,
		ClaimingImage:  claimingImage,
		RemoveImage:    removeImage,
		Kill: func(t *testing.T, id string) {
			cli := rawClient(t)
			ended, failed := cli.ContainerWait(t.Context(), id, container.WaitConditionNotRunning)
			must(t, cli.ContainerKill(t.Context(), id, "KILL"))
			select {
			case <-ended:
			case err := <-failed:
				t.Fatal(err)
			}
		},
	}
}

// testEngine returns the machine's engine and a new install id. It removes the
// install's objects at the end of the test.
func testEngine(t *testing.T) (*Engine, string) {
	t.Helper()
	e, err := New(Options{})
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	if _, err := e.Info(t.Context()); err != nil {
		t.Fatalf("These tests need a Docker engine; run 'make setup images'. %v", err)
	}
	if _, err := e.localImage(t.Context(), testImage); err != nil {
		t.Fatalf("These tests need the image %s; run 'make setup images'. %v", testImage, err)
	}
	install := "test-" + ids.New()
	t.Cleanup(func() { removeAll(t, e, install) })
	return e, install
}

func removeAll(t *testing.T, e *Engine, install string) {
	t.Helper()
	ctx := cleanupContext(t)
	inv, err := e.Inventory(ctx, install)
	must(t, err)
	for _, c := range inv.Containers {
		if err := e.RemoveContainer(ctx, c.ID); err != nil {
			t.Error(err)
		}
	}
	for _, v := range inv.Volumes {
		if err := e.RemoveVolume(ctx, v.Name); err != nil {
			t.Error(err)
		}
	}
	for _, n := range inv.Networks {
		if err := e.RemoveNetwork(ctx, n.ID); err != nil {
			t.Error(err)
		}
	}
}

// rawClient returns a client of the same engine without the adapter.
func rawClient(t *testing.T) *client.Client {
	t.Helper()
	cli, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	must(t, err)
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

func foreignContainer(t *testing.T, name string, claimed runtime.Identity) string {
	t.Helper()
	cli := rawClient(t)
	config := &container.Config{Image: testImage, Cmd: []string{"sleep", "1000000"}}
	if claimed != (runtime.Identity{}) {
		config.Labels = encodeLabels(claimed)
	}
	made, err := cli.ContainerCreate(t.Context(), config, nil, nil, nil, name)
	must(t, err)
	t.Cleanup(func() {
		must(t, cli.ContainerRemove(cleanupContext(t), made.ID, container.RemoveOptions{Force: true}))
	})
	return made.ID
}

// foreignNetwork creates a network over plain HTTP. The client library makes old
// engines refuse a second network of the same name, and some tests need one.
func foreignNetwork(t *testing.T, name string, claimed runtime.Identity) (string, bool) {
	t.Helper()
	cli := rawClient(t)
	cli.NegotiateAPIVersion(t.Context())
	request := network.CreateRequest{Name: name}
	if claimed != (runtime.Identity{}) {
		request.Labels = encodeLabels(claimed)
	}
	body, err := json.Marshal(request)
	must(t, err)
	post, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://engine/v"+cli.ClientVersion()+"/networks/create", bytes.NewReader(body))
	must(t, err)
	post.Header.Set("Content-Type", "application/json")
	reply, err := cli.HTTPClient().Do(post)
	must(t, err)
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	must(t, err)
	if reply.StatusCode == http.StatusConflict {
		return "", false
	}
	var made network.CreateResponse
	must(t, json.Unmarshal(text, &made))
	if made.ID == "" {
		t.Fatalf("the engine made no network: %s", text)
	}
	t.Cleanup(func() {
		if err := cli.NetworkRemove(cleanupContext(t), made.ID); err != nil && !errdefs.IsNotFound(err) {
			t.Error(err)
		}
	})
	return made.ID, true
}

func claimingImage(t *testing.T, claimed runtime.Identity) string {
	t.Helper()
	cli := rawClient(t)
	made, err := cli.ContainerCreate(t.Context(), &container.Config{Image: testImage}, nil, nil, nil, "")
	must(t, err)
	defer func() {
		must(t, cli.ContainerRemove(t.Context(), made.ID, container.RemoveOptions{}))
	}()
	committed, err := cli.ContainerCommit(t.Context(), made.ID, container.CommitOptions{
		Config: &container.Config{Labels: encodeLabels(claimed)},
	})
	must(t, err)
	t.Cleanup(func() { removeImage(t, committed.ID) })
	return committed.ID
}
