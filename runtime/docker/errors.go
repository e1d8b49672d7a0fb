package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// errNotAnEngine means that the answer to a ping had no API version.
var errNotAnEngine = errors.New("the answer does not come from a Docker engine")

// maxEngineText bounds a quoted message of the engine, in bytes.
const maxEngineText = 500

// classify gives err its class, and a plain sentence if a person must act. NotFound
// and Conflict get no sentence, because only the callers know what they mean.
func (e *Engine) classify(verb string, err error) error {
	switch {
	case fault.Of(err) != nil:
		return err
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("docker: %s: %w: %w", verb, errdefs.ErrUnavailable, err)
	case errors.Is(err, context.DeadlineExceeded):
		return e.unavailable(err, "Docker did not %s in time on %s: if 'docker info' hangs too, restart Docker.", verb, e.host)
	case versionRefused(err):
		return e.unavailable(err, "Docker on %s does not support the API version of agbox (%s): unset DOCKER_API_VERSION, or update Docker to 20.10 or newer.",
			e.host, engineText(err))
	case client.IsErrConnectionFailed(err), errors.Is(err, errNotAnEngine):
		return e.unreachable(err)
	case brokenReply(err), errdefs.IsUnavailable(err):
		return e.unavailable(err, "The connection to Docker on %s was lost: check that Docker is running, and try again.", e.host)
	case errdefs.IsNotFound(err), errdefs.IsConflict(err):
		return fmt.Errorf("docker: %s: %w", verb, err)
	case errdefs.IsInvalidArgument(err):
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"Docker refused to %s: %s.", verb, engineText(err)).Because(err)
	}
	return engineFailed(verb, err)
}

func (e *Engine) unavailable(cause error, format string, args ...any) error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, format, args...).Because(cause)
}

func engineFailed(verb string, err error) error {
	if text := err.Error(); strings.Contains(text, "no space left on device") || strings.Contains(text, "disk quota exceeded") {
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_FILE_SYSTEM_FULL,
			"Docker could not %s, because its disk is full (%s): free some space, for example with 'docker system prune', and try again.",
			verb, engineText(err)).Because(err)
	}
	return fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_ENGINE_FAILED,
		"Docker could not %s: %s.", verb, engineText(err)).Because(err)
}

// unreachable explains a failed connection. The client library hides why a Unix
// socket cannot be reached, so the socket file is examined here.
func (e *Engine) unreachable(err error) error {
	path, local := strings.CutPrefix(e.host, "unix://")
	if local {
		_, statErr := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrPermission), errors.Is(statErr, fs.ErrPermission):
			return e.unavailable(err, "You have no permission to use Docker on %s: join its group with 'sudo usermod -aG docker $USER' and log in again.", e.host)
		case errors.Is(statErr, fs.ErrNotExist):
			return e.unavailable(err, "Docker is not running (%s does not exist): install Docker, or start it with 'sudo systemctl start docker', or set the address of another one as \"engine\" in agboxd.yaml.", path)
		}
	}
	return e.unavailable(err, "Docker does not answer on %s: start it with 'sudo systemctl start docker', or set its address as \"engine\" in agboxd.yaml.", e.host)
}

// versionRefused reports whether the engine refused the API version of a call. It
// has no status of its own for that; the message has been the same since 1.13.
func versionRefused(err error) bool {
	text := err.Error()
	return strings.Contains(text, "client version") &&
		(strings.Contains(text, "is too new") || strings.Contains(text, "is too old"))
}

// brokenReply reports whether the connection to the engine, or to a proxy before
// it, broke in the middle of an answer.
func brokenReply(err error) bool {
	var netErr net.Error
	var syntax *json.SyntaxError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &netErr) || errors.As(err, &syntax)
}

// engineText returns the engine's own message in a form that fits into a sentence.
func engineText(err error) string {
	text := strings.TrimPrefix(err.Error(), "Error response from daemon: ")
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxEngineText {
		text = strings.ToValidUTF8(text[:maxEngineText], "") + "..."
	}
	return strings.TrimRight(text, ". ")
}
