// Package build makes images from folders of the host. An image is found again by its
// content: the name that the engine keeps it under has the digest of the build context
// and of everything else that decides about the build.
package build

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Repository is the name of all images that are made here. The tag is the digest.
const Repository = "agbox/build"

// Engine is the container engine as builds need it.
type Engine interface {
	// EnsureImage returns the local image, or pulls it.
	EnsureImage(ctx context.Context, want runtime.ImageRequest, progress func(runtime.PullProgress)) (runtime.Image, error)
	// BuildImage builds an image from a tar archive and returns its id.
	BuildImage(ctx context.Context, opts runtime.BuildOptions, context io.Reader, output func(string) error) (id string, err error)
}

// Builder makes images. Concurrent requests for the same content share one build.
type Builder struct {
	engine Engine
	// spool is a folder for the archives of contexts, which have no names in it.
	spool string
	// builds has the builds in progress. All that want the same content share one.
	builds runtime.Shared[string, string]
}

// New returns a Builder that keeps archives in the folder spool while they are built. The
// folder belongs to it.
func New(engine Engine, spool string) *Builder { return &Builder{engine: engine, spool: spool} }

// Wait returns when no build runs any more. Nobody may call Ensure meanwhile.
func (b *Builder) Wait() { b.builds.Wait() }

// Ensure returns the image of a request, and builds it if there is none. progress gets
// lines of the build's output, in the caller's goroutine; it may skip some. Faults:
// HOST_PATH_UNUSABLE, IMAGE_BUILD_FAILED with the last output of the build.
func (b *Builder) Ensure(ctx context.Context, r Request, progress func(line string)) (runtime.Image, error) {
	if len(r.Build.GetFeatures()) > 0 || r.Build.GetImage() != "" {
		return b.withFeatures(ctx, r, progress)
	}
	return b.ensure(ctx, r, progress)
}

// withFeatures returns the image with features on top of another image.
func (b *Builder) withFeatures(ctx context.Context, r Request, progress func(line string)) (runtime.Image, error) {
	base, err := b.base(ctx, r, progress)
	if err != nil || len(r.Build.GetFeatures()) == 0 {
		return base, err
	}
	if strings.ContainsFunc(base.User, func(c rune) bool { return c <= ' ' || strings.ContainsRune("\"'\\$", c) }) {
		return runtime.Image{}, refused("The user %q of the image has characters that no user has: name another image.", base.User)
	}
	r.Build = &agboxv1.BuildSpec{Features: r.Build.GetFeatures(), DockerfileInline: featuresDockerfile(base, r.Build.GetFeatures())}
	if r.Policy == runtime.PullAlways {
		r.Policy = runtime.PullIfMissing // the base is new already, and is named by its id
	}
	return b.ensure(ctx, r, progress)
}

// base returns the image that features are added to.
func (b *Builder) base(ctx context.Context, r Request, progress func(line string)) (runtime.Image, error) {
	if name := r.Build.GetImage(); name != "" {
		want := runtime.ImageRequest{Ref: name, Platform: r.Platform, Policy: r.Policy}
		return b.engine.EnsureImage(ctx, want, func(p runtime.PullProgress) {
			if progress != nil {
				progress("pulling " + name)
			}
		})
	}
	r.Build = &agboxv1.BuildSpec{
		Context: r.Build.GetContext(), Dockerfile: r.Build.GetDockerfile(), DockerfileInline: r.Build.GetDockerfileInline(),
		Args: r.Build.GetArgs(), Target: r.Build.GetTarget(),
	}
	return b.ensure(ctx, r, progress)
}

func (b *Builder) ensure(ctx context.Context, r Request, progress func(line string)) (runtime.Image, error) {
	packed, err := pack(ctx, b.spool, r)
	if err != nil {
		return runtime.Image{}, err
	}
	ours := true // the archive goes over to a build that is started
	defer func() {
		if ours {
			packed.Close()
		}
	}()
	want := runtime.ImageRequest{Ref: Repository + ":" + packed.digest, Platform: r.Platform, Policy: runtime.PullNever}
	if r.Policy != runtime.PullAlways {
		found, err := b.engine.EnsureImage(ctx, want, nil)
		if err == nil || !errdefs.IsNotFound(err) {
			return found, err
		}
	}
	started, err := b.builds.Do(ctx, want.Ref, func(ctx context.Context, line func(string)) error {
		defer packed.Close()
		return b.build(ctx, r, packed, want.Ref, line)
	}, progress)
	ours = !started
	if err != nil {
		return runtime.Image{}, err
	}
	return b.engine.EnsureImage(ctx, want, nil)
}

// build builds one image and adds the last output to a failure.
func (b *Builder) build(ctx context.Context, r Request, packed *archived, ref string, line func(string)) error {
	last, told := new(tail), ""
	_, err := b.engine.BuildImage(ctx, runtime.BuildOptions{
		Tags: []string{ref}, Dockerfile: packed.dockerfile, Args: r.Build.GetArgs(), Target: r.Build.GetTarget(),
		Platform: r.Platform, Pull: r.Policy == runtime.PullAlways,
	}, packed.reader(), func(text string) error {
		last.add(text, func(one string) {
			if one != told {
				told = one
				line(one)
			}
		})
		return ctx.Err()
	})
	f := fault.Of(err)
	if f == nil || f.Reason != agboxv1.ErrorReason_IMAGE_BUILD_FAILED {
		return err
	}
	message := f.Message
	if output := last.text(); output != "" {
		message += " The last output of the build:\n" + output
	}
	return fault.New(f.Class, f.Reason, "%s", message).Because(err)
}

const (
	// tailLines and tailBytes bound the output that an error has.
	tailLines = 12
	tailBytes = 2 << 10
)

// tail keeps the last lines of an output.
type tail struct {
	lines   []string
	partial string
}

// add adds a piece of output and calls line with each complete line that is not empty.
func (t *tail) add(text string, line func(string)) {
	text = t.partial + text
	for {
		one, rest, ended := strings.Cut(text, "\n")
		if !ended {
			t.partial = one[max(0, len(one)-tailBytes):]
			return
		}
		if one = strings.TrimSpace(one); one != "" {
			one = one[max(0, len(one)-tailBytes):]
			t.lines = append(t.lines[max(0, len(t.lines)-tailLines+1):], one)
			if !strings.HasPrefix(one, "--->") && !strings.HasPrefix(one, "Removing intermediate container") {
				line(one) // the others name only layers
			}
		}
		text = rest
	}
}

func (t *tail) text() string {
	text := strings.TrimSpace(strings.Join(append(t.lines[:len(t.lines):len(t.lines)], t.partial), "\n"))
	if cut := len(text) - tailBytes; cut > 0 {
		text = "..." + text[cut:]
	}
	return strings.ToValidUTF8(text, "?")
}

// PresetPrefix begins the names of the images of presets, which clients build.
const PresetPrefix = "agbox/preset-"

// Listed is an image of the engine.
type Listed struct {
	runtime.ListedImage
	// Built is set if all its names are those of images that agbox makes.
	Built bool
	// Needed is set if a container uses it, or if an image is based on it that is needed or that
	// agbox has not made.
	Needed bool
}

// List says of the images of the engine what they are to agbox. It leaves out those between the
// steps of a build.
func List(all []runtime.ListedImage) []Listed {
	parents, based, needed := make(map[string]string, len(all)), make(map[string]bool), make(map[string]bool)
	for _, i := range all {
		parents[i.ID] = i.Parent
		based[i.Parent] = true
	}
	var list []Listed
	for _, i := range all {
		built := len(i.Names) > 0 && !slices.ContainsFunc(i.Names, func(name string) bool {
			return !strings.HasPrefix(name, Repository+":") && !strings.HasPrefix(name, PresetPrefix)
		})
		if i.Used {
			needed[i.ID] = true
		}
		if i.Used || len(i.Names) > 0 && !built {
			for id := parents[i.ID]; id != "" && !needed[id]; id = parents[id] {
				needed[id] = true
			}
		}
		if len(i.Names) > 0 || !based[i.ID] {
			list = append(list, Listed{ListedImage: i, Built: built})
		}
	}
	for i := range list {
		list[i].Needed = needed[list[i].ID]
	}
	return list
}
