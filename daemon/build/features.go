package build

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec/feature"
	"github.com/agbox/agbox/workspace/archive"
)

// featuresDir is where a build finds the folders of features, and optionsName a file with
// the options of one beside its own. A feature's own file of this name is replaced.
const (
	featuresDir = "/tmp/.agbox-features"
	optionsName = ".agbox-options"
)

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

// featuresDockerfile installs features as root, and keeps what the image says about its
// main command.
func featuresDockerfile(base runtime.Image, features []*agboxv1.FeatureSpec) string {
	user, _, _ := strings.Cut(cmp.Or(base.User, "root"), ":")
	var d strings.Builder
	fmt.Fprintf(&d, "FROM %s\nUSER root\n", base.ID)
	entrypoint := base.Entrypoint
	for i, f := range features {
		for _, name := range slices.Sorted(maps.Keys(f.GetEnvs())) {
			fmt.Fprintf(&d, "ENV %s=%s\n", name, dockerfileText(f.GetEnvs()[name]))
		}
		dir := path.Join(featuresDir, strconv.Itoa(i))
		fmt.Fprintf(&d, "COPY %d %s/\n", i, dir)
		fmt.Fprintf(&d, "RUN cd %s && set -a && _CONTAINER_USER=%s && . ./%s && %s && set +a && chmod +x ./%s && ./%[5]s && rm -rf %s\n",
			dir, shellQuoted(user), optionsName, homes, feature.Script, featuresDir)
	}
	for _, f := range slices.Backward(features) {
		if f.GetEntrypoint() != "" {
			entrypoint = append([]string{f.GetEntrypoint()}, entrypoint...)
		}
	}
	if len(entrypoint) > len(base.Entrypoint) { // ENTRYPOINT clears CMD
		fmt.Fprintf(&d, "ENTRYPOINT %s\nCMD %s\n", jsonText(entrypoint), jsonText(base.Cmd))
	}
	fmt.Fprintf(&d, "USER %s\n", cmp.Or(base.User, "root"))
	return d.String()
}

// homes sets the variables with homes that install.sh expects. getent is not in every
// image.
const homes = `: "${_REMOTE_USER:=$_CONTAINER_USER}" && ` +
	`agbox_home() { grep -E "^$1:|^[^:]*:[^:]*:$1:" /etc/passwd | cut -d: -f6 | head -n 1; } && ` +
	`_CONTAINER_USER_HOME="$(agbox_home "$_CONTAINER_USER")" && _REMOTE_USER_HOME="$(agbox_home "$_REMOTE_USER")"`

// options is the file with the options of a feature, for a shell.
func options(f *agboxv1.FeatureSpec) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.GetOptions())) {
		fmt.Fprintf(&text, "%s=%s\n", name, shellQuoted(f.GetOptions()[name]))
	}
	return text.String()
}

func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// dockerfileText quotes a text of a Dockerfile in which variables are replaced.
func dockerfileText(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

func jsonText(words []string) string {
	if words == nil {
		words = []string{}
	}
	text, _ := json.Marshal(words) // strings always have one
	return string(text)
}

// writeFeatures writes the folders of features to an archive, each below its number.
func writeFeatures(ctx context.Context, w io.Writer, r Request) error {
	for i, f := range r.Build.GetFeatures() {
		tree, err := r.Host.Open(hostfiles.Copy{Source: f.GetSource(), Force: r.Force})
		if err != nil {
			return err
		}
		if !tree.IsDir() {
			tree.Close()
			return refused("The feature %s is a file: name the folder that has %s.", f.GetSource(), feature.Script)
		}
		err = bounded(ctx, "The feature "+f.GetSource(), "take out what it does not need", func(ctx context.Context, sizes archive.Record) error {
			return tree.PackBelow(ctx, &withoutEnd{w: w}, strconv.Itoa(i), sizes)
		})
		tree.Close()
		if err != nil {
			return err
		}
		out := tar.NewWriter(w)
		if err := writeText(out, path.Join(strconv.Itoa(i), optionsName), options(f)); err != nil {
			return spoolFailed(err)
		}
		if err := out.Flush(); err != nil {
			return spoolFailed(err)
		}
	}
	return nil
}

// withoutEnd passes on an archive without its end, so that another one can follow.
type withoutEnd struct {
	w    io.Writer
	kept []byte
}

func (e *withoutEnd) Write(p []byte) (int, error) {
	const end = 1024 // bytes: two empty blocks
	e.kept = append(e.kept, p...)
	if n := len(e.kept) - end; n > 0 {
		if _, err := e.w.Write(e.kept[:n]); err != nil {
			return 0, err
		}
		e.kept = append(e.kept[:0], e.kept[n:]...)
	}
	return len(p), nil
}

// writeText writes a small file to an archive.
func writeText(out *tar.Writer, name, text string) error {
	err := out.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	})
	if err == nil {
		_, err = io.WriteString(out, text)
	}
	return err
}
