package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// engine keeps the names of built images and the files of the last context.
type engine struct {
	mu     sync.Mutex
	images map[string]bool
	builds int
	files  map[string]string
	// during is called in each build.
	during func(ctx context.Context, output func(string) error) error
}

var _ Engine = (*engine)(nil)

func (e *engine) EnsureImage(_ context.Context, want runtime.ImageRequest, _ func(runtime.PullProgress)) (runtime.Image, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.images[want.Ref] {
		return runtime.Image{}, errdefs.ErrNotFound
	}
	return runtime.Image{ID: "id of " + want.Ref}, nil
}

func (e *engine) BuildImage(ctx context.Context, opts runtime.BuildOptions, archive io.Reader, output func(string) error) (string, error) {
	files := make(map[string]string)
	in := tar.NewReader(archive)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		content, err := io.ReadAll(in)
		if err != nil {
			return "", err
		}
		files[filepath.Clean(h.Name)] = string(content) + h.Linkname
	}
	e.mu.Lock()
	e.builds++
	e.files = files
	during := e.during
	e.mu.Unlock()
	if during != nil {
		if err := during(ctx, output); err != nil {
			return "", err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.images == nil {
		e.images = make(map[string]bool)
	}
	for _, tag := range opts.Tags {
		e.images[tag] = true
	}
	return "id", nil
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func request(dir string) Request {
	return Request{Build: &agboxv1.BuildSpec{Context: dir}, Host: hostfiles.Checker{}}
}

func ensure(t *testing.T, b *Builder, r Request) runtime.Image {
	t.Helper()
	image, err := b.Ensure(t.Context(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func TestImageIsFoundAgainByItsContent(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"Dockerfile": "FROM a\n", "src/main": "1"})
	e := new(engine)
	b := New(e, t.TempDir())
	first := ensure(t, b, request(dir))
	copied := t.TempDir()
	write(t, copied, map[string]string{"Dockerfile": "FROM a\n", "src/main": "1"})
	if again := ensure(t, b, request(copied)); again.ID != first.ID || e.builds != 1 {
		t.Errorf("the same content in another folder gives %s after %d builds, want %s after 1", again.ID, e.builds, first.ID)
	}
	for what, change := range map[string]func(r *Request){
		"content":   func(*Request) { write(t, copied, map[string]string{"src/main": "2"}) },
		"target":    func(r *Request) { r.Build.Target = "x" },
		"args":      func(r *Request) { r.Build.Args = map[string]string{"A": "1"} },
		"platform":  func(r *Request) { r.Platform = "linux/arm64" },
		"inline":    func(r *Request) { r.Build.DockerfileInline = "FROM b\n" },
		"a mode":    func(*Request) { _ = os.Chmod(filepath.Join(copied, "src/main"), 0o755) },
		"a newness": func(r *Request) { r.Policy = runtime.PullAlways },
	} {
		before := e.builds
		r := request(copied)
		change(&r)
		if ensure(t, b, r); e.builds != before+1 {
			t.Errorf("after a change of %s there are %d builds, want 1", what, e.builds-before)
		}
	}
}

func TestContextLeavesOutWhatDockerignoreNames(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"docker/Dockerfile": "FROM a\n", ".dockerignore": "docker\nnode_modules\n*.log\n!keep.log\n",
		"node_modules/x/y": "", "a.log": "", "keep.log": "", "main.go": "",
		".agbox.Dockerfile": "FROM evil\n",
	})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	e := new(engine)
	r := request(dir)
	r.Build.Dockerfile = "./docker/Dockerfile"
	ensure(t, New(e, t.TempDir()), r)
	for name, want := range map[string]bool{
		"docker/Dockerfile": true, "node_modules/x/y": false, "a.log": false, "keep.log": true, "main.go": true, ".agbox.Dockerfile": false, "link": true,
	} {
		if _, there := e.files[name]; there != want {
			t.Errorf("%s is in the context: %v, want %v", name, there, want)
		}
	}
	if e.files["link"] != "/etc/passwd" {
		t.Errorf("the link became %q; it must stay a link", e.files["link"])
	}
}

func TestInlineDockerfileNeedsNoContext(t *testing.T) {
	e := new(engine)
	ensure(t, New(e, t.TempDir()), Request{Build: &agboxv1.BuildSpec{DockerfileInline: "FROM a\n"}})
	if e.files[inlineName] != "FROM a\n" || len(e.files) != 1 {
		t.Errorf("the context is %v", e.files)
	}
}

func TestFailedBuildTellsItsLastOutput(t *testing.T) {
	e := &engine{during: func(_ context.Context, output func(string) error) error {
		if err := output("Step 1/2\n\nStep 2/2\nE: no such pack"); err != nil {
			return err
		}
		if err := output("age\n"); err != nil {
			return err
		}
		return refused("The image could not be built: code 100.")
	}}
	var lines []string
	_, err := New(e, t.TempDir()).Ensure(t.Context(), Request{Build: &agboxv1.BuildSpec{DockerfileInline: "FROM a\n"}}, func(line string) { lines = append(lines, line) })
	if f := fault.Of(err); f == nil || f.Reason != agboxv1.ErrorReason_IMAGE_BUILD_FAILED ||
		f.Message != "The image could not be built: code 100. The last output of the build:\nStep 1/2\nStep 2/2\nE: no such package" {
		t.Errorf("the error is %v", err)
	}
	if !slices.Contains(lines, "E: no such package") {
		t.Errorf("its last line is not among %q", lines)
	}
}

func TestRefusedContexts(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"Dockerfile": "FROM a\n", "many/.dockerignore": strings.Repeat("a\n", maxPatterns+1), "many/Dockerfile": ""})
	huge := t.TempDir()
	write(t, huge, map[string]string{"Dockerfile": "FROM a\n", "video": ""})
	if err := os.Truncate(filepath.Join(huge, "video"), maxContext+1); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		build *agboxv1.BuildSpec
		want  string
	}{
		"a huge file":          {&agboxv1.BuildSpec{Context: huge}, "has more than 8 GiB, of which video has 8589934593 bytes: name what the build does not need in a .dockerignore there"},
		"a missing folder":     {&agboxv1.BuildSpec{Context: dir + "/none"}, "does not exist"},
		"a file":               {&agboxv1.BuildSpec{Context: dir + "/Dockerfile"}, "is a file"},
		"a missing Dockerfile": {&agboxv1.BuildSpec{Context: dir, Dockerfile: "other"}, "There is no Dockerfile other"},
		"too many patterns":    {&agboxv1.BuildSpec{Context: dir + "/many"}, "more than 1000 patterns"},
		"a dangerous folder":   {&agboxv1.BuildSpec{Context: "/etc"}, "is refused"},
	} {
		_, err := New(new(engine), t.TempDir()).Ensure(t.Context(), Request{Build: c.build}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q", name, err, c.want)
		}
	}
	write(t, huge, map[string]string{".dockerignore": "video\n"})
	ensure(t, New(new(engine), t.TempDir()), request(huge))
}

func TestConcurrentRequestsShareOneBuild(t *testing.T) {
	spool := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		e := &engine{during: func(ctx context.Context, _ func(string) error) error {
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		b := New(e, spool)
		r := Request{Build: &agboxv1.BuildSpec{DockerfileInline: "FROM a\n"}}
		first, giveUp := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if _, err := b.Ensure(first, r, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("the one that gave up got %v", err)
			}
		})
		synctest.Wait()
		for range 3 {
			group.Go(func() {
				if _, err := b.Ensure(t.Context(), r, nil); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		giveUp() // it started the build, which goes on for the others
		synctest.Wait()
		close(release)
		group.Wait()
		if e.builds != 1 {
			t.Errorf("there were %d builds", e.builds)
		}
	})
}

func TestLastOneToGiveUpCancelsTheBuild(t *testing.T) {
	spool := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		cancelled := false
		e := &engine{during: func(ctx context.Context, _ func(string) error) error {
			<-ctx.Done()
			cancelled = true
			return ctx.Err()
		}}
		ctx, giveUp := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			giveUp()
		}()
		_, err := New(e, spool).Ensure(ctx, Request{Build: &agboxv1.BuildSpec{DockerfileInline: "FROM a\n"}}, nil)
		if !errors.Is(err, context.Canceled) || !cancelled {
			t.Errorf("the error is %v, the build was cancelled: %v", err, cancelled)
		}
	})
}

// TestABuildEndsWithACallerThatPanics: nobody else would cancel it.
func TestABuildEndsWithACallerThatPanics(t *testing.T) {
	spool := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e := &engine{during: func(ctx context.Context, output func(string) error) error {
			if err := output("a line\n"); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		b := New(e, spool)
		func() {
			defer func() { _ = recover() }()
			_, err := b.Ensure(t.Context(), Request{Build: &agboxv1.BuildSpec{DockerfileInline: "FROM a\n"}}, func(string) { panic("test") })
			t.Errorf("it did not panic: %v", err)
		}()
		b.Wait()
	})
}

func TestWaitReturnsOnceNoBuildRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ends, waited := new(Builder), make(chan struct{}), make(chan struct{})
		go func() {
			_, _ = b.builds.Do(t.Context(), "key", func(context.Context, func(string)) error { <-ends; return nil }, nil)
		}()
		synctest.Wait()
		go func() { b.Wait(); close(waited) }()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("it does not wait for a build")
		default:
		}
		close(ends)
		<-waited
	})
}

func TestListedImagesSayWhatUsesThem(t *testing.T) {
	image := func(id, parent string, used bool, names ...string) runtime.ListedImage {
		return runtime.ListedImage{ID: id, Parent: parent, Used: used, Names: names}
	}
	all := []runtime.ListedImage{
		image("debian", "", false, "debian:12"),
		image("base", "debian", false, Repository+":1"),
		image("step", "base", false),
		image("features", "step", true, Repository+":2"), // a container keeps its base too
		image("unused", "debian", false, Repository+":3"),
		image("preset", "debian", false, PresetPrefix+"claude:1"),
		image("theirs", "preset", false, "ann/agent:1"),
		image("named", "debian", false, Repository+":4", "ann/x:1"),
		image("dangling", "debian", false),
		image("old", "debian", true, Repository+":5"),
		image("oldbase", "", false, Repository+"er:1"),
	}
	var got []string
	for _, i := range List(all) {
		got = append(got, fmt.Sprintf("%s built=%v needed=%v", i.ID, i.Built, i.Needed))
	}
	want := `debian built=false needed=true
base built=true needed=true
features built=true needed=true
unused built=true needed=false
preset built=true needed=true
theirs built=false needed=false
named built=false needed=false
dangling built=false needed=false
old built=true needed=true
oldbase built=false needed=false`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}
