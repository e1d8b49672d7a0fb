package docker

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// EnsureImage returns the local image, or pulls it. ref is a name with tag or
// digest, or an image id. progress may be nil; it is called at most twice a second,
// from this goroutine. Faults: INVALID_REQUEST for what is no reference,
// IMAGE_NOT_FOUND, IMAGE_PULL_FAILED.
func (e *Engine) EnsureImage(ctx context.Context, ref string, progress func(runtime.PullProgress)) (runtime.Image, error) {
	// What is not a reference must not reach the engine: it would become a path there.
	parsed, err := reference.ParseAnyReference(ref)
	if err != nil {
		return runtime.Image{}, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"%q is not the name of an image (%v): write it in lower case as name, name:tag or name@sha256:digest.", ref, err).With("image", ref)
	}
	found, err := e.localImage(ctx, ref)
	if !errdefs.IsNotFound(err) {
		return found, err
	}
	if _, pullable := parsed.(reference.Named); !pullable {
		return runtime.Image{}, imageNotFound(ref, err)
	}
	if err := e.pull(ctx, ref, progress); err != nil {
		return runtime.Image{}, err
	}
	found, err = e.localImage(ctx, ref)
	if errdefs.IsNotFound(err) {
		return runtime.Image{}, imageNotFound(ref, err)
	}
	return found, err
}

func (e *Engine) localImage(ctx context.Context, ref string) (runtime.Image, error) {
	var found runtime.Image
	err := e.call(ctx, "inspect the image "+ref, func(cli *client.Client) error {
		seen, err := cli.ImageInspect(ctx, ref)
		if err != nil {
			return err
		}
		found = runtime.Image{ID: seen.ID}
		if c := seen.Config; c != nil {
			found.Entrypoint, found.Cmd, found.Env = c.Entrypoint, c.Cmd, c.Env
			found.User, found.WorkingDir = c.User, c.WorkingDir
		}
		return nil
	})
	return found, err
}

func (e *Engine) pull(ctx context.Context, ref string, progress func(runtime.PullProgress)) error {
	return e.call(ctx, "pull the image "+ref, func(cli *client.Client) error {
		stream, err := cli.ImagePull(ctx, ref, image.PullOptions{})
		if err != nil {
			return pullFault(ctx, ref, err)
		}
		defer func() { _ = stream.Close() }()
		return pullFault(ctx, ref, readPull(stream, progress))
	})
}

func imageNotFound(ref string, cause error) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND,
		"There is no image %s on this machine, and none to pull: check the name, or build or load it ('docker build', 'docker load').", ref).
		With("image", ref).Because(cause)
}

func pullFailed(ref string, class, cause error, sentence string) error {
	return fault.New(class, agboxv1.ErrorReason_IMAGE_PULL_FAILED, sentence, ref).With("image", ref).Because(cause)
}

// pullFault turns the failure of a pull into a sentence. The engine's words come
// from registries, resolvers and proxies; they name hosts that mean nothing to the
// reader, so they stay in the cause. A broken connection to the engine itself is
// left to classify.
func pullFault(ctx context.Context, ref string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case versionRefused(err), client.IsErrConnectionFailed(err), brokenReply(err):
		return err
	}
	text := strings.ToLower(err.Error())
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("no such host", "dial tcp", "i/o timeout", "client.timeout", "connection refused", "network is unreachable",
		"proxyconnect", "tls handshake", "server misbehaving", "x509"):
		return pullFailed(ref, errdefs.ErrUnavailable, err,
			"There is no image %s on this machine, and its registry cannot be reached: check the name and the network, or build or load the image.")
	case has("denied", "unauthorized", "authentication required", "no basic auth"):
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND,
			"There is no image %s on this machine, and the registry has none that you may pull: check the name, or log in and fetch it with 'docker pull %s'.", ref, ref).
			With("image", ref).Because(err)
	case has("no matching manifest", "does not match the specified platform", "no match for platform"):
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND,
			"The image %s does not exist for this machine's processor: choose another tag, or build it here.", ref).With("image", ref).Because(err)
	case has("not found", "unknown", "does not exist"):
		return imageNotFound(ref, err)
	case has("no space left", "disk quota exceeded"):
		return pullFailed(ref, errdefs.ErrResourceExhausted, err,
			"The image %s does not fit on the engine's disk: make room, for example with 'docker system prune', and try again.")
	case has("toomanyrequests", "too many requests", "rate limit"):
		return pullFailed(ref, errdefs.ErrUnavailable, err,
			"The registry refuses the image %s for now, because too much was pulled: log in with 'docker login', or try again later.")
	}
	return pullFailed(ref, errdefs.ErrUnavailable, err,
		"The pull of the image %s broke off: try again, or see what 'docker pull' says.")
}
