package runtimetest

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"regexp"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// fakePlatform is the platform of the fake, and of images added without one.
const fakePlatform = "linux/amd64"

// Abilities returns those of a small machine without optional features.
func (f *Fake) Abilities(ctx context.Context) (runtime.Abilities, error) {
	err := f.do(ctx, VerbAbilities, func() error { return nil })
	if err != nil {
		return runtime.Abilities{}, err
	}
	return runtime.Abilities{
		Platform: fakePlatform, CPUs: 4, Memory: 8 << 30,
		NoDiskLimit: "it is a fake", NoGPUs: "it is a fake", StartInterval: true,
	}, nil
}

// imagePattern is the part of the grammar of references that tests need.
var imagePattern = regexp.MustCompile(`^([a-z0-9.-]+:[0-9]+/)?[a-z0-9]+(([._/]|__|-+)[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)

// EnsureImage finds added and built images by reference or id, and no others.
func (f *Fake) EnsureImage(ctx context.Context, want runtime.ImageRequest, progress func(runtime.PullProgress)) (runtime.Image, error) {
	var found runtime.Image
	err := f.do(ctx, VerbEnsureImage, func() error {
		f.mu.Lock()
		endless := f.endless[want.Ref]
		f.mu.Unlock()
		if endless {
			<-ctx.Done()
			return ended(ctx)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for name, image := range f.images {
			if (name == want.Ref || image.ID == want.Ref) && cmp.Or(want.Platform, image.Platform) == image.Platform {
				found = image
				return nil
			}
		}
		if !imagePattern.MatchString(want.Ref) {
			return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "%q is not the name of an image.", want.Ref)
		}
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, "There is no image %s: add it to the fake.", want.Ref)
	})
	if err == nil && progress != nil {
		progress(runtime.PullProgress{LayersDone: 1, LayersTotal: 1})
	}
	return found, err
}

// ListImages lists the added and built images by name.
func (f *Fake) ListImages(ctx context.Context) ([]runtime.ListedImage, error) {
	var listed []runtime.ListedImage
	err := f.do(ctx, VerbListImages, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, name := range sortedKeys(f.images) {
			listed = append(listed, runtime.ListedImage{ID: f.images[name].ID, Names: []string{name}, Size: 1, CreatedAt: time.Now(), Used: f.usesLocked(f.images[name].ID)})
		}
		return nil
	})
	return listed, err
}

// RemoveImage removes a name of an image, or all of an id.
func (f *Fake) RemoveImage(ctx context.Context, ref string) error {
	return f.do(ctx, VerbRemoveImage, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for name, image := range f.images {
			if name != ref && image.ID != ref {
				continue
			}
			if f.usesLocked(image.ID) {
				return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IMAGE_IN_USE, "The image %s is used by a container.", ref)
			}
			delete(f.images, name)
		}
		return nil
	})
}

// usesLocked reports whether a container was made from an image.
func (f *Fake) usesLocked(id string) bool {
	for _, c := range f.containers {
		if c.spec.ImageID == id {
			return true
		}
	}
	return false
}

// BuildImage requires the Dockerfile in the context and adds an empty image.
func (f *Fake) BuildImage(ctx context.Context, opts runtime.BuildOptions, context io.Reader, output func(string) error) (string, error) {
	var id string
	err := f.do(ctx, VerbBuildImage, func() error {
		files := tar.NewReader(context)
		there := false
		for {
			header, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			there = there || path.Clean(header.Name) == cmp.Or(opts.Dockerfile, "Dockerfile")
		}
		if !there {
			return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IMAGE_BUILD_FAILED, "The context has no Dockerfile.")
		}
		if err := output("built\n"); err != nil {
			return err
		}
		image := runtime.Image{Platform: opts.Platform}
		for _, tag := range opts.Tags {
			image = f.AddImage(tag, image)
		}
		id = image.ID
		return nil
	})
	return id, err
}

// ContainerUsage returns made-up usage for a running container and zero for others.
func (f *Fake) ContainerUsage(ctx context.Context, id string) (runtime.Usage, error) {
	var used runtime.Usage
	err := f.do(ctx, VerbContainerUsage, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		c := f.containers[id]
		if c == nil {
			return noContainer(id)
		}
		if c.State == runtime.StateRunning {
			now := time.Now()
			used = runtime.Usage{At: now, CPU: now.Sub(c.StartedAt) / 2, Memory: 1 << 20, MemoryLimit: 8 << 30, PIDs: 1, PIDsLimit: 4096}
		}
		return nil
	})
	return used, err
}

// firstFreePort is the first port of the host that the fake picks.
const firstFreePort = 40000

// publishLocked returns the published ports of a container that is being started.
func (f *Fake) publishLocked(spec runtime.ContainerSpec) ([]runtime.PublishedPort, error) {
	taken := make(map[uint16]bool)
	for _, c := range f.containers {
		for _, p := range c.Ports {
			taken[p.Host] = true
		}
	}
	var ports []runtime.PublishedPort
	for _, p := range spec.Ports {
		host := p.Host
		if host == 0 {
			for host = firstFreePort; taken[host]; host++ {
			}
		}
		if taken[host] {
			return nil, fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_PORT_TAKEN, "The port %d of the host is taken.", host)
		}
		taken[host] = true
		ports = append(ports, runtime.PublishedPort{
			Container: p.Container, Protocol: cmp.Or(p.Protocol, "tcp"), HostIP: cmp.Or(p.HostIP, "127.0.0.1"), Host: host,
		})
	}
	return ports, nil
}
