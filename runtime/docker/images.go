package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// HasImage reports whether the engine has an image, so that it asks no registry for it. An
// engine that does not answer is an error.
func (e *Engine) HasImage(ctx context.Context, want runtime.ImageRequest) (bool, error) {
	want.Policy = runtime.PullNever
	_, err := e.EnsureImage(ctx, want, nil)
	if errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) {
		return false, nil
	}
	return err == nil, err
}

// EnsureImage returns the local image, or pulls it first, according to the policy.
// Concurrent callers of the same image share one pull. progress may be nil; it is
// called at most twice a second, in the caller's goroutine. Faults: INVALID_REQUEST
// for an invalid reference, IMAGE_NOT_FOUND, IMAGE_PULL_FAILED.
func (e *Engine) EnsureImage(ctx context.Context, want runtime.ImageRequest, progress func(runtime.PullProgress)) (runtime.Image, error) {
	// Check it here: the client library would put an invalid reference into a URL path.
	parsed, err := reference.ParseAnyReference(want.Ref)
	if err != nil {
		return runtime.Image{}, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"%q is not the name of an image (%v): write it in lower case as name, name:tag or name@sha256:digest.", want.Ref, err).With("image", want.Ref)
	}
	named, pullable := parsed.(reference.Named)
	if want.Policy != runtime.PullAlways || !pullable {
		found, err := e.localImage(ctx, want.Ref)
		switch {
		case err == nil && fits(found, want.Platform):
			return found, nil
		case err != nil && !errdefs.IsNotFound(err):
			return runtime.Image{}, err
		case want.Policy == runtime.PullNever && pullable:
			return runtime.Image{}, notPulled(want, found, err)
		case !pullable && err == nil:
			return runtime.Image{}, otherPlatform(want, found)
		case !pullable:
			return runtime.Image{}, imageNotFound(want.Ref, err)
		}
	}
	key := want
	key.Policy = runtime.PullAlways // all callers that get here pull
	_, err = e.pulls.Do(ctx, key, func(ctx context.Context, progress func(runtime.PullProgress)) error {
		return e.pull(ctx, want, named, progress)
	}, progress)
	if err != nil {
		return runtime.Image{}, e.classify("pull the image "+want.Ref, err)
	}
	found, err := e.localImage(ctx, want.Ref)
	if errdefs.IsNotFound(err) {
		return runtime.Image{}, imageNotFound(want.Ref, err)
	}
	if err == nil && !fits(found, want.Platform) {
		return runtime.Image{}, otherPlatform(want, found)
	}
	return found, err
}

// fits reports whether an image is for a platform. If one of the two has no
// variant, it matches every variant of the other.
func fits(found runtime.Image, platform string) bool {
	return platform == "" || found.Platform == platform || strings.HasPrefix(found.Platform, platform+"/") ||
		strings.HasPrefix(platform, found.Platform+"/")
}

func otherPlatform(want runtime.ImageRequest, found runtime.Image) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND,
		"The image %s is for %s, not for %s: choose another tag or platform, or build the image for this platform.", want.Ref, found.Platform, want.Platform).
		With("image", want.Ref)
}

func notPulled(want runtime.ImageRequest, found runtime.Image, cause error) error {
	if cause == nil {
		return otherPlatform(want, found)
	}
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND,
		"There is no image %s on this machine, and the pull policy is never: pull it with 'agbox image pull %s', or change the pull policy.", want.Ref, want.Ref).
		With("image", want.Ref).Because(cause)
}

func (e *Engine) localImage(ctx context.Context, ref string) (runtime.Image, error) {
	var found runtime.Image
	err := e.call(ctx, "inspect the image "+ref, func(cli *client.Client) error {
		seen, err := cli.ImageInspect(ctx, ref)
		if err != nil {
			return err
		}
		found = runtime.Image{ID: seen.ID, Platform: seen.Os + "/" + seen.Architecture}
		if seen.Variant != "" {
			found.Platform += "/" + seen.Variant
		}
		if c := seen.Config; c != nil {
			found.Entrypoint, found.Cmd, found.Env = c.Entrypoint, c.Cmd, c.Env
			found.User, found.WorkingDir = c.User, c.WorkingDir
		}
		return nil
	})
	return found, err
}

func (e *Engine) pull(ctx context.Context, want runtime.ImageRequest, named reference.Named, progress func(runtime.PullProgress)) error {
	auth, trouble := e.pullAuth(ctx, named)
	here := func() bool {
		_, err := e.localImage(ctx, want.Ref)
		return err == nil
	}
	return e.call(ctx, "pull the image "+want.Ref, func(cli *client.Client) error {
		stream, err := cli.ImagePull(ctx, want.Ref, image.PullOptions{RegistryAuth: auth, Platform: want.Platform})
		if err != nil {
			return pullFault(ctx, want, here, trouble, err)
		}
		defer func() { _ = stream.Close() }()
		return pullFault(ctx, want, here, trouble, readPull(stream, progress))
	})
}

// RemoveImage removes a name of an image, and the image with its last name. It does nothing if
// there is none. The fault is IMAGE_IN_USE if a container uses the image.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	err := e.call(ctx, "remove the image "+ref, func(cli *client.Client) error {
		_, err := cli.ImageRemove(ctx, ref, image.RemoveOptions{PruneChildren: true})
		return err
	})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err):
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IMAGE_IN_USE,
			"The image %s is used by a container, has several names, or another image is based on it: remove those first.", ref).With("image", ref).Because(err)
	}
	return err
}

// ListImages lists the engine's images, newest first, also those between the steps of a build.
func (e *Engine) ListImages(ctx context.Context) ([]runtime.ListedImage, error) {
	var listed []runtime.ListedImage
	err := e.call(ctx, "list its images", func(cli *client.Client) error {
		all, err := cli.ImageList(ctx, image.ListOptions{All: true})
		if err != nil {
			return err
		}
		containers, err := cli.ContainerList(ctx, container.ListOptions{All: true})
		used := make(map[string]bool)
		for _, c := range containers {
			used[c.ImageID] = true
		}
		listed = make([]runtime.ListedImage, 0, len(all))
		for _, i := range all {
			names := slices.DeleteFunc(slices.Clone(i.RepoTags), func(name string) bool { return strings.HasPrefix(name, "<none>") })
			listed = append(listed, runtime.ListedImage{ID: i.ID, Names: names, Size: i.Size, CreatedAt: time.Unix(i.Created, 0), Parent: i.ParentID, Used: used[i.ID]})
		}
		return err
	})
	slices.SortStableFunc(listed, func(a, b runtime.ListedImage) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return listed, err
}

const noneToPull = "none to pull: check the name, or build or load it ('docker build', 'docker load')."

func imageNotFound(ref string, cause error) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, "There is no image %s on this machine, and "+noneToPull, ref).
		With("image", ref).Because(cause)
}

func pullFailed(ref string, class, cause error, sentence string) error {
	return fault.New(class, agboxv1.ErrorReason_IMAGE_PULL_FAILED, sentence, ref).With("image", ref).Because(cause)
}

// unreached are words in the engine's message about a registry that it cannot reach.
var unreached = []string{"no such host", "dial tcp", "i/o timeout", "client.timeout", "connection refused", "network is unreachable",
	"proxyconnect", "tls handshake", "server misbehaving", "x509:"}

// pullFault turns the failure of a pull into a fault with a plain sentence. The
// engine's message comes from registries, resolvers and proxies and names hosts
// that mean nothing to the reader, so it stays in the cause. classify handles a
// broken connection to the engine itself. here reports whether the image is on this
// machine nevertheless, for example because PullAlways asked for a newer one.
// trouble says why there were no credentials.
func pullFault(ctx context.Context, want runtime.ImageRequest, here func() bool, trouble string, err error) error {
	ref := want.Ref
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
	without := func(missing, known string) string {
		if here() {
			return "The image %s is on this machine, but " + known
		}
		return "There is no image %s on this machine, and " + missing
	}
	switch {
	case has(unreached...):
		return pullFailed(ref, errdefs.ErrUnavailable, err,
			without("its registry cannot be reached: check the name and the network, or build or load the image.",
				"its registry cannot be reached to pull it again: check the name and the network, or use the local image."))
	case has("denied", "unauthorized", "authentication required", "no basic auth"):
		if trouble != "" {
			trouble = " " + trouble
		}
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND,
			without("the registry has none that you may pull: check the name, or log in with 'docker login'.%s",
				"the registry has none that you may pull: check the name, log in with 'docker login', or use the local image.%s"), ref, trouble).
			With("image", ref).Because(err)
	case has("no matching manifest", "does not match the specified platform", "no match for platform"):
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND,
			"The image %s does not exist for %s: choose another tag, or build it.", ref, cmp.Or(want.Platform, "this machine's processor")).With("image", ref).Because(err)
	case has("not found", "unknown", "does not exist"):
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND,
			without(noneToPull, "there is none to pull: check the name, or use the local image."), ref).With("image", ref).Because(err)
	case has("no space left", "disk quota exceeded"):
		return pullFailed(ref, errdefs.ErrResourceExhausted, err,
			"The image %s does not fit on the engine's disk: free some space, for example with 'docker system prune', and try again.")
	case has("toomanyrequests", "too many requests", "rate limit"):
		return pullFailed(ref, errdefs.ErrUnavailable, err,
			"The registry refuses the image %s for now, because its rate limit for pulls is exceeded: log in with 'docker login', or try again later.")
	}
	return pullFailed(ref, errdefs.ErrUnavailable, err,
		"The pull of the image %s failed: try again, or run 'docker pull' to see why.")
}

// BuildImage builds an image from context, a tar archive, and returns its id. It
// calls output with the output of the build, in the caller's goroutine. Faults:
// INVALID_REQUEST for a bad tag, IMAGE_PULL_FAILED, IMAGE_BUILD_FAILED.
func (e *Engine) BuildImage(ctx context.Context, opts runtime.BuildOptions, context io.Reader, output func(string) error) (id string, err error) {
	for _, tag := range opts.Tags {
		if _, err := reference.ParseNormalizedNamed(tag); err != nil {
			return "", fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"%q is not the name of an image (%v): write it in lower case as name or name:tag.", tag, err)
		}
	}
	args := make(map[string]*string, len(opts.Args))
	for key, value := range opts.Args {
		args[key] = &value
	}
	options := build.ImageBuildOptions{
		Tags: opts.Tags, Dockerfile: cmp.Or(opts.Dockerfile, "Dockerfile"), BuildArgs: args, Target: opts.Target, Platform: opts.Platform,
		NoCache: opts.NoCache, PullParent: opts.Pull, Remove: true, ForceRemove: true, AuthConfigs: e.allAuths(ctx),
	}
	err = e.call(ctx, "build the image", func(cli *client.Client) error {
		reply, err := cli.ImageBuild(ctx, context, options)
		if err != nil {
			if versionRefused(err) || client.IsErrConnectionFailed(err) || brokenReply(err) || errdefs.IsUnavailable(err) || ctx.Err() != nil {
				return err
			}
			return buildFailed(err)
		}
		defer func() { _ = reply.Body.Close() }()
		id, err = readBuild(reply.Body, output)
		return err
	})
	return id, err
}

// buildMessage is one message of the engine's stream.
type buildMessage struct {
	Stream string `json:"stream"`
	// Status and ID describe the pull of a base image.
	Status string `json:"status"`
	ID     string `json:"id"`
	Aux    struct {
		ID string `json:"ID"`
	} `json:"aux"`
	Error string `json:"error"`
}

func readBuild(stream io.Reader, output func(string) error) (id string, err error) {
	messages := json.NewDecoder(stream)
	for {
		var m buildMessage
		err := messages.Decode(&m)
		if errors.Is(err, io.EOF) {
			return id, nil
		}
		if err != nil {
			return "", err
		}
		text := m.Stream
		switch {
		case m.Error != "":
			return "", buildFailed(errors.New(m.Error))
		case m.Aux.ID != "":
			id = m.Aux.ID
		case m.Status == "Pull complete", m.Status != "" && m.ID == "":
			text = strings.TrimSpace(m.ID+" "+m.Status) + "\n"
		}
		if text != "" {
			if err := output(text); err != nil {
				return "", err
			}
		}
	}
}

// buildFailed is the fault of a build that has failed. The engine's message about a command
// names the command, and not what that has printed: a host that is not reached is one of an
// image, or of a file that ADD fetches.
func buildFailed(cause error) error {
	text := strings.ToLower(cause.Error())
	if slices.ContainsFunc(unreached, func(words string) bool { return strings.Contains(text, words) }) && !strings.HasPrefix(text, "the command ") {
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_IMAGE_PULL_FAILED,
			"The image could not be built, because a registry that it needs cannot be reached: %s. Check the names in the Dockerfile and the network.", engineText(cause)).Because(cause)
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IMAGE_BUILD_FAILED,
		"The image could not be built: %s.", engineText(cause)).Because(cause)
}
