// Package build makes images from folders of the host. An image is found again by its
// content: the name that the engine keeps it under has the digest of the build context
// and of everything else that decides about the build.
package build

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"

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
	spool  string
	builds shared
}

// New returns a Builder that keeps archives in the folder spool while they are built. The
// folder belongs to it.
func New(engine Engine, spool string) *Builder { return &Builder{engine: engine, spool: spool} }

// Wait returns when no build runs any more. Nobody may call Ensure meanwhile.
func (b *Builder) Wait() { b.builds.work.Wait() }

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
	started, err := b.builds.do(ctx, want.Ref, func(ctx context.Context, line func(string)) error {
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
	last := new(tail)
	_, err := b.engine.BuildImage(ctx, runtime.BuildOptions{
		Tags: []string{ref}, Dockerfile: packed.dockerfile, Args: r.Build.GetArgs(), Target: r.Build.GetTarget(),
		Platform: r.Platform, Pull: r.Policy == runtime.PullAlways,
	}, packed.reader(), func(text string) error {
		last.add(text, line)
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

// shared has the builds in progress. Callers with the same key share one.
type shared struct {
	mu      sync.Mutex // guards running and the fields of its entries that say so; not held during I/O
	running map[string]*job
	work    sync.WaitGroup // the builds
}

// job is one build in progress.
type job struct {
	cancel context.CancelFunc
	// waiters is the number of callers that wait; the last one to leave cancels the build.
	// line is the newest line of output. changed is closed and replaced when line changes.
	// All three are guarded by shared.mu.
	waiters int
	line    string
	changed chan struct{}
	// done is closed when the build has ended; err is final then.
	done chan struct{}
	err  error
}

// do waits for the build with the key and starts it if there is none; started is false if
// there was one, and build is not called then. If ctx ends, only this caller stops waiting.
// The last one cancels the build and waits for its end. do calls progress in the caller's
// goroutine; progress may be nil.
func (s *shared) do(ctx context.Context, key string, build func(context.Context, func(line string)) error, progress func(string)) (started bool, err error) {
	j, started := s.join(ctx, key, build)
	defer s.leave(key, j) // also if progress panics
	told := ""
	tell := func() (changed <-chan struct{}) {
		s.mu.Lock()
		line, changed := j.line, j.changed
		s.mu.Unlock()
		if line != told && progress != nil {
			progress(line)
			told = line
		}
		return changed
	}
	for {
		select {
		case <-tell():
		case <-j.done:
			tell() // the last line
			return started, j.err
		case <-ctx.Done():
			return started, ctx.Err()
		}
	}
}

func (s *shared) join(ctx context.Context, key string, build func(context.Context, func(string)) error) (j *job, started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if there := s.running[key]; there != nil {
		there.waiters++
		return there, false
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	j = &job{cancel: cancel, waiters: 1, changed: make(chan struct{}), done: make(chan struct{})}
	if s.running == nil {
		s.running = make(map[string]*job)
	}
	s.running[key] = j
	s.work.Go(func() {
		defer cancel()
		err := build(life, func(line string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			j.line = line
			close(j.changed)
			j.changed = make(chan struct{})
		})
		s.mu.Lock()
		if s.running[key] == j {
			delete(s.running, key)
		}
		s.mu.Unlock()
		j.err = err
		close(j.done)
	})
	return j, true
}

// leave stops waiting. The last one to leave cancels the build and waits for its end, and the
// next caller starts a new one.
func (s *shared) leave(key string, left *job) {
	s.mu.Lock()
	left.waiters--
	last := left.waiters == 0
	if last && s.running[key] == left {
		delete(s.running, key)
	}
	s.mu.Unlock()
	if last {
		left.cancel()
		<-left.done
	}
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
