package docker

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/pkg/stdcopy"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cleanupContext returns a context for clean-ups: t.Context is cancelled before they run.
func cleanupContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// output runs a command in a container and returns its output.
func output(t *testing.T, id string, command ...string) string {
	t.Helper()
	cli := rawClient(t)
	exec, err := cli.ContainerExecCreate(t.Context(), id, container.ExecOptions{Cmd: command, AttachStdout: true, AttachStderr: true})
	must(t, err)
	stream, err := cli.ContainerExecAttach(t.Context(), exec.ID, container.ExecAttachOptions{})
	must(t, err)
	defer stream.Close()
	var written bytes.Buffer
	_, err = stdcopy.StdCopy(&written, &written, stream.Reader)
	must(t, err)
	return written.String()
}

func removeImage(t *testing.T, id string) {
	t.Helper()
	// Use force: a container of the image may be removed after the image.
	if _, err := rawClient(t).ImageRemove(cleanupContext(t), id, image.RemoveOptions{Force: true}); err != nil {
		t.Error(err)
	}
}
