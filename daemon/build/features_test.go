package build

import (
	"context"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/runtime"
)

// based is an engine whose named image says what it starts.
type based struct {
	*engine
	image runtime.Image
	asked []runtime.ImageRequest
}

func (b *based) EnsureImage(ctx context.Context, want runtime.ImageRequest, progress func(runtime.PullProgress)) (runtime.Image, error) {
	if strings.HasPrefix(want.Ref, Repository) {
		return b.engine.EnsureImage(ctx, want, progress)
	}
	b.asked = append(b.asked, want)
	return b.image, nil
}

func featureOf(source string, options map[string]string) *agboxv1.FeatureSpec {
	return &agboxv1.FeatureSpec{Source: source, Options: options}
}

func TestFeaturesAreInstalledOnTopOfTheImage(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	write(t, one, map[string]string{"install.sh": "echo one\n", "lib/x": "1"})
	write(t, two, map[string]string{"install.sh": "echo two\n", optionsName: "EVIL=1"})
	e := &based{engine: new(engine), image: runtime.Image{ID: "sha256:base", User: "dev:staff", Entrypoint: []string{"/entry"}, Cmd: []string{"run", "a b"}}}
	b := New(e, t.TempDir())
	r := Request{Build: &agboxv1.BuildSpec{Image: "named:1", Features: []*agboxv1.FeatureSpec{
		featureOf(one, map[string]string{"VERSION": "it's", "A": "$(x)"}), featureOf(two, nil),
	}}}
	r.Build.Features[0].Envs = map[string]string{"PATH": `/one:${PATH}"`}
	r.Build.Features[1].Entrypoint = "/usr/local/share/start.sh"
	first := ensure(t, b, r)
	if len(e.asked) != 1 || e.asked[0].Ref != "named:1" {
		t.Errorf("the base image was asked for as %v", e.asked)
	}
	dockerfile := e.files[inlineName]
	at := 0
	for _, want := range []string{
		"FROM sha256:base\n", "USER root\n", `ENV PATH="/one:${PATH}\""` + "\n", "COPY 0 /tmp/.agbox-features/0/\n", "_CONTAINER_USER='dev'", "./install.sh",
		"COPY 1 /tmp/.agbox-features/1/\n", "./install.sh", `ENTRYPOINT ["/usr/local/share/start.sh","/entry"]` + "\n" + `CMD ["run","a b"]` + "\n", "USER dev:staff\n",
	} {
		i := strings.Index(dockerfile[at:], want)
		if i < 0 {
			t.Fatalf("%q is not there, or not in order, in\n%s", want, dockerfile)
		}
		at += i
	}
	for name, want := range map[string]string{
		"0/install.sh": "echo one\n", "0/lib/x": "1", "0/" + optionsName: "A='$(x)'\nVERSION='it'\\''s'\n", "1/install.sh": "echo two\n", "1/" + optionsName: "",
	} {
		if got, there := e.files[name]; !there || got != want {
			t.Errorf("%s is %q (%v), want %q", name, got, there, want)
		}
	}
	if again := ensure(t, b, r); again.ID != first.ID || e.builds != 1 {
		t.Errorf("the same features give %s after %d builds", again.ID, e.builds)
	}
	for _, change := range []struct {
		what string
		do   func()
	}{
		{"an option", func() { r.Build.Features[0].Options["VERSION"] = "2" }},
		{"a variable", func() { r.Build.Features[0].Envs["PATH"] = "/two" }},
		{"a file", func() { write(t, one, map[string]string{"lib/x": "2"}) }},
		{"the order", func() { slices.Reverse(r.Build.Features) }},
		{"the base", func() { e.image.ID = "sha256:other" }},
	} {
		before := e.builds
		if change.do(); ensure(t, b, r).ID == "" || e.builds != before+1 {
			t.Errorf("after a change of %s there are %d builds, want 1", change.what, e.builds-before)
		}
	}
}

func TestFeaturesAreInstalledOnTopOfABuild(t *testing.T) {
	dir, one := t.TempDir(), t.TempDir()
	write(t, dir, map[string]string{"Dockerfile": "FROM a\n"})
	write(t, one, map[string]string{"install.sh": ""})
	e := new(engine)
	r := request(dir)
	r.Build.Features = []*agboxv1.FeatureSpec{featureOf(one, nil)}
	ensure(t, New(e, t.TempDir()), r)
	if e.builds != 2 || !strings.HasPrefix(e.files[inlineName], "FROM id of "+Repository) {
		t.Errorf("after %d builds the Dockerfile is\n%s", e.builds, e.files[inlineName])
	}
	if strings.Contains(e.files[inlineName], "ENTRYPOINT") {
		t.Errorf("the entrypoint of the image is written again:\n%s", e.files[inlineName])
	}
}

func TestRefusedFeatures(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"file": ""})
	for name, c := range map[string]struct{ user, source, want string }{
		"a missing folder":   {"", dir + "/none", "does not exist"},
		"a file":             {"", dir + "/file", "is a file"},
		"a dangerous folder": {"", "/etc", "is refused"},
		"a strange user":     {"x\nRUN evil", dir, "has characters that no user has"},
	} {
		e := &based{engine: new(engine), image: runtime.Image{ID: "sha256:base", User: c.user}}
		_, err := New(e, t.TempDir()).Ensure(t.Context(), Request{Build: &agboxv1.BuildSpec{Image: "x", Features: []*agboxv1.FeatureSpec{featureOf(c.source, nil)}}}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q", name, err, c.want)
		}
	}
}
