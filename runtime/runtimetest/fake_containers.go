package runtimetest

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// killed is the exit code of a process that got SIGKILL.
const killed = 137

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}

// EnsureContainer creates a container, or finds it by name and identity.
func (f *Fake) EnsureContainer(ctx context.Context, spec runtime.ContainerSpec) (string, error) {
	var id string
	err := f.do(ctx, VerbEnsureContainer, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, c := range f.containers {
			switch {
			case c.Name != spec.Name:
			case c.Identity != spec.Identity:
				return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE, "The engine has another container %q.", spec.Name)
			default:
				id = c.ID
				return nil
			}
		}
		if !f.hasImageLocked(spec.ImageID) {
			return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, "The image %s does not exist.", spec.ImageID)
		}
		for _, m := range spec.Volumes {
			if _, ok := f.volumes[m.Volume]; !ok {
				return fmt.Errorf("fake engine: no volume %s: %w", m.Volume, errdefs.ErrNotFound)
			}
		}
		id = f.addContainerLocked(spec)
		return nil
	})
	return id, err
}

// ContainerLogs writes one line that names the container.
func (f *Fake) ContainerLogs(ctx context.Context, id string, _ runtime.LogOptions, stdout, _ io.Writer) error {
	return f.do(ctx, VerbContainerLogs, func() error {
		f.mu.Lock()
		c := f.containers[id]
		f.mu.Unlock()
		if c == nil {
			return noContainer(id)
		}
		_, err := fmt.Fprintf(stdout, "output of %s\n", c.Name)
		return err
	})
}

// ExecIn runs no program: the output is the command, and then the input. The exit code is the
// number of arguments.
func (f *Fake) ExecIn(ctx context.Context, id string, command runtime.ContainerCommand, streams runtime.ContainerStreams) (exitCode int, err error) {
	if streams.Stdin != nil {
		defer streams.Stdin.Close()
	}
	err = f.do(ctx, VerbExecIn, func() error {
		f.mu.Lock()
		c := f.containers[id]
		running := c != nil && c.State == runtime.StateRunning
		f.mu.Unlock()
		switch {
		case c == nil:
			return noContainer(id)
		case !running:
			return fmt.Errorf("fake engine: container %s does not run: %w", id, errdefs.ErrConflict)
		}
		exitCode = len(command.Args)
		if _, err := fmt.Fprintln(streams.Stdout, strings.Join(command.Args, " ")); err != nil || streams.Stdin == nil {
			return err
		}
		_, err := io.Copy(streams.Stdout, streams.Stdin)
		return err
	})
	return exitCode, err
}

// ReadFile returns what SetFile has set.
func (f *Fake) ReadFile(ctx context.Context, id, path string, limit int64) ([]byte, error) {
	var content []byte
	err := f.do(ctx, VerbReadFile, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.containers[id] == nil {
			return noContainer(id)
		}
		content = []byte(f.files[path])
		if int64(len(content)) > limit {
			return fmt.Errorf("fake engine: %s is too large: %w", path, errdefs.ErrFailedPrecondition)
		}
		return nil
	})
	return content, err
}

// Archive packs what SetFile has set at the path.
func (f *Fake) Archive(ctx context.Context, id, path string) (io.ReadCloser, error) {
	var packed bytes.Buffer
	err := f.do(ctx, VerbReadFile, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		content, ok := f.files[path]
		switch {
		case f.containers[id] == nil:
			return noContainer(id)
		case !ok:
			return fmt.Errorf("fake engine: no file %s: %w", path, errdefs.ErrNotFound)
		}
		out := tar.NewWriter(&packed)
		err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(path), Mode: 0o644, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(out, content)
		}
		return errors.Join(err, out.Close())
	})
	return io.NopCloser(&packed), err
}

// CopyTo reads the archive and notes the names of its regular files with their content.
// Copied returns them.
func (f *Fake) CopyTo(ctx context.Context, id string, archive io.Reader) error {
	return f.do(ctx, VerbCopyTo, func() error {
		files := tar.NewReader(archive)
		for {
			header, err := files.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			content, err := io.ReadAll(files)
			if err != nil {
				return err
			}
			if header.Typeflag == tar.TypeReg {
				f.noteCopy(id, header.Name, string(content))
			}
		}
	})
}

func (f *Fake) noteCopy(id, name, content string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c != nil {
		if c.copied == nil {
			c.copied = make(map[string]string)
		}
		c.copied[name] = content
	}
}

// Copied returns the files that CopyTo has put into a container, by its name.
func (f *Fake) Copied(name string) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if c.Name == name {
			return maps.Clone(c.copied)
		}
	}
	return nil
}

func (f *Fake) hasImageLocked(id string) bool {
	for _, image := range f.images {
		if image.ID == id {
			return true
		}
	}
	return false
}

func (f *Fake) addContainerLocked(spec runtime.ContainerSpec) string {
	c := &fakeContainer{spec: spec, Container: runtime.Container{
		Identity: spec.Identity, ID: f.newIDLocked(), Name: spec.Name, State: runtime.StateCreated, NetworkID: spec.NetworkID,
		Limits: spec.Limits.Made(), ImageID: spec.ImageID,
	}}
	f.containers[c.ID] = c
	f.emitLocked(c, "create")
	return c.ID
}

// StartContainer starts a container. It succeeds if the container runs already.
func (f *Fake) StartContainer(ctx context.Context, id string) error {
	return f.do(ctx, VerbStartContainer, func() error {
		spec, begun, err := f.start(id)
		if err != nil || !begun {
			return err
		}
		if f.OnStart != nil {
			f.OnStart(spec)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if c := f.containers[id]; c != nil {
			f.emitLocked(c, "start")
		}
		return nil
	})
}

func (f *Fake) start(id string) (spec runtime.ContainerSpec, begun bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return spec, false, noContainer(id)
	}
	if c.State == runtime.StateRunning {
		return spec, false, nil
	}
	if _, ok := f.networks[c.spec.NetworkID]; !ok && c.spec.NetworkID != "" && c.spec.NetworkID != runtime.NoNetwork {
		return spec, false, fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_ENGINE_FAILED, "The engine has no network %s to start %s in.", c.spec.NetworkID, c.Name)
	}
	ports, err := f.publishLocked(c.spec)
	if err != nil {
		return spec, false, err
	}
	c.State, c.ExitCode, c.OOMKilled, c.Ports = runtime.StateRunning, 0, false, ports
	c.StartedAt, c.FinishedAt, c.Health = time.Now(), time.Time{}, ""
	if h := c.spec.Healthcheck; h != nil && len(h.Test) > 0 && h.Test[0] != "NONE" {
		c.Health = runtime.HealthStarting
	}
	return c.spec, true, nil
}

// StopContainer stops a container at once, whatever the grace period, with exit code
// 0. A stopped or missing container is success.
func (f *Fake) StopContainer(ctx context.Context, id string, _ time.Duration) error {
	return f.do(ctx, VerbStopContainer, func() error {
		f.end(id, 0, "stop")
		return nil
	})
}

// WaitContainer waits until a container does not run.
func (f *Fake) WaitContainer(ctx context.Context, id string) (exitCode int, err error) {
	err = f.do(ctx, VerbWaitContainer, func() error {
		for {
			f.mu.Lock()
			c, changed := f.containers[id], f.changed
			running := c != nil && c.State == runtime.StateRunning
			if c != nil {
				exitCode = c.ExitCode
			}
			f.mu.Unlock()
			if c == nil {
				return noContainer(id)
			}
			if !running {
				return nil
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ended(ctx)
			}
		}
	})
	return exitCode, err
}

// RemoveContainer kills and removes a container. A missing one is success.
func (f *Fake) RemoveContainer(ctx context.Context, id string) error {
	return f.do(ctx, VerbRemoveContainer, func() error {
		f.Vanish(id)
		return nil
	})
}

// InspectContainer observes one container by id or name. This process stands for the
// first process of every running container.
func (f *Fake) InspectContainer(ctx context.Context, id string) (runtime.Container, error) {
	var seen runtime.Container
	err := f.do(ctx, VerbInspectContainer, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		c := f.containers[id]
		for _, named := range f.containers {
			if c == nil && named.Name == id {
				c = named
			}
		}
		if c == nil {
			return noContainer(id)
		}
		seen, c.inspected = c.Container, true
		if seen.State == runtime.StateRunning {
			seen.PID = os.Getpid()
		}
		return nil
	})
	return seen, err
}

// Kill makes a running container exit with the code, without a call of the daemon.
func (f *Fake) Kill(id string, code int) {
	f.end(id, code, "")
}

// KillOutOfMemory makes a running container end as if by the kernel's OOM killer.
func (f *Fake) KillOutOfMemory(id string) {
	f.mu.Lock()
	if c := f.containers[id]; c != nil && c.State == runtime.StateRunning {
		c.OOMKilled = true
		f.emitLocked(c, "oom")
	}
	f.mu.Unlock()
	f.end(id, killed, "")
}

// Rename gives a container another name, as a user of the engine does behind our back.
func (f *Fake) Rename(id, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c != nil {
		c.Name = name
	}
}

// Vanish removes a container or a network without a call of the daemon. The container
// is never visible in the state exited.
func (f *Fake) Vanish(id string) {
	f.mu.Lock()
	ran := f.endLocked(id, killed, "")
	delete(f.networks, id)
	if c := f.containers[id]; c != nil {
		delete(f.containers, id)
		f.emitLocked(c, "destroy")
	}
	f.mu.Unlock()
	f.callOnEnd(ran)
}

// Detach disconnects a container from its network or connects it again, like a user's
// "docker network disconnect" and "connect". It emits no event, because the engine's
// event for this does not name the sandbox.
func (f *Fake) Detach(id string, detached bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c != nil {
		c.Detached = detached
	}
}

// SetHealth sets the result of a container's healthcheck.
func (f *Fake) SetHealth(id, health string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c != nil {
		c.Health = health
		f.emitLocked(c, "health_status: "+health)
	}
}

// end makes a running container exit. It emits "die", then action if it is not empty.
func (f *Fake) end(id string, code int, action string) {
	f.mu.Lock()
	ran := f.endLocked(id, code, action)
	f.mu.Unlock()
	f.callOnEnd(ran)
}

// endLocked returns the container's spec if it ran, otherwise nil.
func (f *Fake) endLocked(id string, code int, action string) *runtime.ContainerSpec {
	c := f.containers[id]
	if c == nil || c.State != runtime.StateRunning {
		return nil
	}
	f.exitLocked(c, code)
	f.emitLocked(c, "die")
	if action != "" {
		f.emitLocked(c, action)
	}
	spec := c.spec
	return &spec
}

// callOnEnd calls OnEnd with the spec of the container that ended; nil means none did.
func (f *Fake) callOnEnd(ran *runtime.ContainerSpec) {
	if ran != nil && f.OnEnd != nil {
		f.OnEnd(*ran)
	}
}

func (f *Fake) exitLocked(c *fakeContainer, code int) {
	c.State, c.ExitCode, c.FinishedAt, c.Health, c.Ports = runtime.StateExited, code, time.Now(), "", nil
	c.inspected = false
}

func (f *Fake) emitLocked(c *fakeContainer, action string) {
	f.events = append(f.events, runtime.Event{Identity: c.Identity, Action: action, ObjectID: c.ID, Time: time.Now()})
	f.wakeLocked()
}

func (f *Fake) wakeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}
