package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// EnsureContainer creates the container, or finds the one that it created before,
// with the same name and identity including the nonce. A foreign container with
// that name stays untouched; the error is then the fault NAME_TAKEN_IN_ENGINE.
func (e *Engine) EnsureContainer(ctx context.Context, spec runtime.ContainerSpec) (string, error) {
	for {
		id, err := e.createContainer(ctx, spec)
		if !errdefs.IsConflict(err) {
			return id, err
		}
		id, err = e.adopt(ctx, spec)
		if !errors.Is(err, errNameReleased) {
			return id, err
		}
	}
}

func (e *Engine) createContainer(ctx context.Context, spec runtime.ContainerSpec) (string, error) {
	var id string
	err := e.call(ctx, "create the container", func(cli *client.Client) error {
		host := hostConfig(spec)
		filter, err := e.seccompOptions(ctx, cli, spec.Security)
		if err != nil {
			return err
		}
		host.SecurityOpt = append(host.SecurityOpt, filter...)
		made, err := cli.ContainerCreate(ctx, containerConfig(spec, cli.ClientVersion()), host, networkConfig(spec), nil, spec.Name)
		id = made.ID
		return err
	})
	if unsupported := unsupportedFeature(err); unsupported != nil {
		return "", unsupported
	}
	switch {
	case errdefs.IsNotFound(err) && strings.Contains(err.Error(), "network"):
		return "", engineFailed("create the container", errors.New(engineText(err)))
	case errdefs.IsNotFound(err):
		return "", fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND,
			"The image %s was removed from Docker before its container was created: pull, build or load it again.", spec.ImageID).Because(err)
	}
	return id, err
}

// errNameReleased means that the name is free again and the creation can be retried.
var errNameReleased = errors.New("the name is free again")

// releasePause is the time between two attempts to create a container while the
// engine still reserves the name for a removed container.
const releasePause = 20 * time.Millisecond

// adopt examines the container that holds the name after a conflict. It returns
// the container's id if it is ours, and errNameReleased if it has been removed.
func (e *Engine) adopt(ctx context.Context, spec runtime.ContainerSpec) (string, error) {
	holder, err := e.InspectContainer(ctx, spec.Name)
	switch {
	case errdefs.IsNotFound(err):
		return "", e.waitForRelease(ctx, releasePause)
	case err != nil:
		return "", err
	case holder.State == runtime.StateRemoving:
		if err := e.waitRemoved(ctx, holder.ID); err != nil {
			return "", err
		}
		return "", errNameReleased
	case holder.Identity != spec.Identity || holder.Name != spec.Name:
		return "", fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE,
			"Docker has a container %q that is not this sandbox's: rename or remove it ('docker rm %s'), or choose another sandbox id.", spec.Name, spec.Name)
	}
	return holder.ID, nil
}

// waitForRelease waits for d and returns errNameReleased, or the classified error of ctx.
func (e *Engine) waitForRelease(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return errNameReleased
	case <-ctx.Done():
		return e.classify("create the container", ctx.Err())
	}
}

// StartContainer starts a container. It succeeds if the container runs already. It
// fails with errdefs.ErrNotFound if the container does not exist.
func (e *Engine) StartContainer(ctx context.Context, id string) error {
	return e.call(ctx, "start the container", func(cli *client.Client) error {
		err := cli.ContainerStart(ctx, id, container.StartOptions{})
		if unsupported := unsupportedFeature(err); unsupported != nil {
			return unsupported
		}
		switch {
		case err == nil:
			return nil
		case isPortError(err):
			return portFault(err)
		case deniedMount.MatchString(err.Error()):
			return mountFault(err)
		case errdefs.IsInvalidArgument(err) && !versionRefused(err):
			// The runtime reports a command that it cannot run as an invalid argument.
			return engineFailed("start the container", err)
		case errdefs.IsNotFound(err) && !strings.Contains(err.Error(), "No such container"):
			// The network or a volume is missing, not the container.
			return engineFailed("start the container", errors.New(engineText(err)))
		}
		return err
	})
}

// StopContainer sends the stop signal and kills the remaining processes after the
// grace period, which is rounded up to seconds. It succeeds if the container is
// stopped already or does not exist. The context's deadline must be later than
// the end of the grace period.
func (e *Engine) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	timeout := seconds(grace)
	err := e.call(ctx, "stop the container", func(cli *client.Client) error {
		return cli.ContainerStop(ctx, id, container.StopOptions{Timeout: &timeout})
	})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// WaitContainer waits until a container does not run, and returns the exit code of its
// last run. A container that was never started has 0. It fails with errdefs.ErrNotFound if
// the container does not exist.
func (e *Engine) WaitContainer(ctx context.Context, id string) (exitCode int, err error) {
	err = e.call(ctx, "wait for the container", func(cli *client.Client) error {
		exitCode, err = await(ctx, cli, id, container.WaitConditionNotRunning, "container")
		return err
	})
	return exitCode, err
}

// await waits until a container meets a condition, and returns its exit code.
func await(ctx context.Context, cli *client.Client, id string, until container.WaitCondition, what string) (exitCode int, err error) {
	ended, failed := cli.ContainerWait(ctx, id, until)
	// One of the two channels always gets a message, even if ctx is cancelled.
	select {
	case result := <-ended:
		if result.Error != nil {
			return 0, fmt.Errorf("wait for the %s: %s", what, result.Error.Message)
		}
		return int(result.StatusCode), nil
	case err := <-failed:
		return 0, err
	}
}

// removalWait is how long RemoveContainer waits for the removal by another client before it
// asks anew. Docker 20.10 never answers a wait that begins just when the removal ends.
const removalWait = time.Second

// RemoveContainer kills and removes a container with its anonymous volumes, and
// returns when that is done. It succeeds if the container does not exist.
func (e *Engine) RemoveContainer(ctx context.Context, id string) error {
	for {
		err := e.call(ctx, "remove the container", func(cli *client.Client) error {
			return cli.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		})
		switch {
		case errdefs.IsNotFound(err):
			return nil
		case !errdefs.IsConflict(err):
			return err
		}
		wait, cancel := context.WithTimeout(ctx, removalWait) // another client is removing it
		err = e.waitRemoved(wait, id)
		again := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !again {
			return err
		}
	}
}

// waitRemoved waits until a removal in progress has ended.
func (e *Engine) waitRemoved(ctx context.Context, id string) error {
	err := e.call(ctx, "remove the container", func(cli *client.Client) error {
		_, err := await(ctx, cli, id, container.WaitConditionRemoved, "removal")
		return err
	})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// InspectContainer observes one container by id or name. It fails with errdefs.ErrNotFound
// if the container does not exist. The identity of a foreign container is zero.
func (e *Engine) InspectContainer(ctx context.Context, idOrName string) (runtime.Container, error) {
	var seen runtime.Container
	err := e.call(ctx, "inspect the container", func(cli *client.Client) error {
		reply, err := cli.ContainerInspect(ctx, idOrName)
		if err == nil {
			seen = inspected(reply)
		}
		return err
	})
	return seen, err
}

func inspected(reply container.InspectResponse) runtime.Container {
	c := runtime.Container{ID: reply.ID, Name: strings.TrimPrefix(reply.Name, "/"), ImageID: reply.Image}
	if reply.Config != nil {
		c.Identity, _ = decodeLabels(reply.Config.Labels)
		c.Limits = decodeLimits(reply.Config.Labels)
	}
	if reply.NetworkSettings != nil && reply.HostConfig != nil {
		c.Ports = publishedPorts(reply.NetworkSettings.Ports, reply.HostConfig.PortBindings)
	}
	if reply.HostConfig != nil {
		c.NetworkID = string(reply.HostConfig.NetworkMode)
	}
	c.Detached = reply.NetworkSettings != nil && len(reply.NetworkSettings.Networks) == 0
	if s := reply.State; s != nil {
		c.State = runtime.ContainerState(s.Status)
		c.PID = s.Pid
		c.ExitCode, c.OOMKilled, c.Error = s.ExitCode, s.OOMKilled, s.Error
		c.StartedAt, c.FinishedAt = engineTime(s.StartedAt), engineTime(s.FinishedAt)
		if s.Health != nil && s.Health.Status != container.NoHealthcheck {
			c.Health = s.Health.Status
			if log := s.Health.Log; len(log) > 0 {
				c.HealthOutput = log[len(log)-1].Output
			}
		}
	}
	return c
}

// engineTime parses a time of the engine. The engine reports year 1 for an event
// that has not happened; that becomes the zero time.
func engineTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}
