package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

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
