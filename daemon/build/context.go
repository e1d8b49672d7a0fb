package build

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/filesystem"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec/feature"
	"github.com/agbox/agbox/workspace/archive"
)

// Request is one image to make.
type Request struct {
	Build *agboxv1.BuildSpec
	// Platform of the image; empty means the engine's own.
	Platform string
	// Policy says whether to build although the image is there: PullAlways also looks for
	// newer versions of the base images.
	Policy runtime.PullPolicy
	// Host decides whether the context may leave the host. Force lifts the rule about
	// dangerous sources.
	Host  hostfiles.Checker
	Force bool
}

// inlineName is the name of an inline Dockerfile in the archive. A file of the context
// with this name is left out.
const inlineName = ".agbox.Dockerfile"

// digestVersion changes when the same request shall be built again by a newer agbox.
const digestVersion = "agbox-build-1"

// archived is a build context as a tar archive, in a file without a name.
type archived struct {
	file *os.File
	size int64
	// dockerfile is the path of the Dockerfile in the archive.
	dockerfile string
	// digest identifies everything that decides about the build, except for base images.
	digest string
}

// Close removes the archive.
func (a *archived) Close() { _ = a.file.Close() } // it has no name

// reader reads the archive from its beginning. Several may read at the same time.
func (a *archived) reader() io.Reader { return io.NewSectionReader(a.file, 0, a.size) }

// pack writes the context of a request to a file below the folder spool.
func pack(ctx context.Context, spool string, r Request) (*archived, error) {
	file, err := nameless(spool)
	if err != nil {
		return nil, fmt.Errorf("make a file for a build context: %w", err)
	}
	a := &archived{file: file, dockerfile: path.Clean(filepath.ToSlash(cmp.Or(r.Build.GetDockerfile(), "Dockerfile")))}
	if r.Build.GetDockerfileInline() != "" {
		a.dockerfile = inlineName
	}
	if err := a.fill(ctx, r); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// nameless makes a file without a name in a folder. Not every file system has O_TMPFILE.
func nameless(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(dir, "context-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close() // the first error says more
		return nil, err
	}
	return file, nil
}

func (a *archived) fill(ctx context.Context, r Request) (err error) {
	if err := a.write(ctx, r); err != nil {
		return err
	}
	if a.size, err = a.file.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("measure a build context: %w", err)
	}
	return a.identify(r)
}

// write writes the archive: the inline Dockerfile, then the folder.
func (a *archived) write(ctx context.Context, r Request) error {
	out := tar.NewWriter(a.file)
	if text := r.Build.GetDockerfileInline(); text != "" {
		err := writeText(out, inlineName, text)
		if err == nil {
			err = out.Flush()
		}
		if err != nil {
			return spoolFailed(err)
		}
	}
	if err := writeFeatures(ctx, a.file, r); err != nil {
		return err
	}
	if r.Build.GetContext() == "" {
		return spoolFailed(out.Close())
	}
	tree, err := r.Host.Open(hostfiles.Copy{Source: r.Build.GetContext(), Force: r.Force})
	if err != nil {
		return err
	}
	defer tree.Close()
	if !tree.IsDir() {
		return refused("The build context %s is a file: name the folder that has the Dockerfile.", r.Build.GetContext())
	}
	return bounded(ctx, "The build context "+r.Build.GetContext(), "name what the build does not need in a .dockerignore there", func(ctx context.Context, sizes archive.Record) error {
		return tree.PackFiltered(ctx, a.file, &ignoring{dockerfile: a.dockerfile, root: r.Build.GetContext()}, sizes)
	})
}

// maxContext is the maximum size of the files of a folder that go to a build, in bytes.
const maxContext = 8 << 30

// bounded packs a folder, and ends before a file with which it has more than maxContext.
func bounded(ctx context.Context, what, remedy string, pack func(ctx context.Context, sizes archive.Record) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &budget{left: maxContext, end: cancel}
	err := pack(ctx, b)
	if b.left < 0 {
		return refused("%s has more than %d GiB, of which %s has %d bytes: %s.", what, maxContext>>30, b.largest, b.size, remedy)
	}
	return err
}

// budget is an archive.Record that ends a packing.
type budget struct {
	left    int64
	end     func()
	largest string
	size    int64
}

// Header counts a file, before its content is packed.
func (b *budget) Header(h *tar.Header) {
	if h.Size > b.size {
		b.largest, b.size = h.Name, h.Size
	}
	if b.left -= h.Size; b.left < 0 {
		b.end()
	}
}

// Content does nothing.
func (b *budget) Content([]byte) {}

func spoolFailed(err error) error {
	if err != nil {
		return fmt.Errorf("write a build context: %w", err)
	}
	return nil
}

// identify computes the digest, and checks that the Dockerfile is in the archive. Times
// and owners do not count: a fresh checkout of the same files is the same image.
func (a *archived) identify(r Request) error {
	sum := sha256.New()
	add(sum, digestVersion, a.dockerfile, r.Build.GetTarget(), r.Platform)
	args := r.Build.GetArgs()
	for _, name := range slices.Sorted(maps.Keys(args)) {
		add(sum, name, args[name])
	}
	there := false
	files := tar.NewReader(a.reader())
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read a build context: %w", err)
		}
		name := path.Clean(h.Name)
		there = there || name == a.dockerfile && h.Typeflag != tar.TypeDir
		add(sum, "file", name, h.Linkname, fmt.Sprint(h.Typeflag, h.Mode, h.Size))
		if _, err := io.Copy(sum, files); err != nil {
			return fmt.Errorf("read a build context: %w", err)
		}
	}
	if !there {
		return refused("There is no Dockerfile %s in the build context %s: write one, or name it under dockerfile.", a.dockerfile, cmp.Or(r.Build.GetContext(), "(none)"))
	}
	const bytes = 20
	a.digest = hex.EncodeToString(sum.Sum(nil)[:bytes])
	return nil
}

// add adds texts to a digest, each with its length.
func add(sum hash.Hash, texts ...string) {
	for _, text := range texts {
		_, _ = fmt.Fprintf(sum, "%d:%s", len(text), text) // a hash never fails
	}
}

func refused(format string, args ...any) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IMAGE_BUILD_FAILED, format, args...)
}

// maxIgnore is the maximum size of a .dockerignore in bytes, and maxPatterns that of its
// lines. maxMatched bounds how often a path is compared with a pattern: some seconds.
const (
	maxIgnore   = 256 << 10
	maxPatterns = 1000
	maxMatched  = 50_000_000
)

var _ archive.Filter = (*ignoring)(nil)

// ignoring excludes from a build context what its .dockerignore names, but not the
// Dockerfile.
type ignoring struct {
	dockerfile, root string

	patterns *patternmatcher.PatternMatcher
	count    int
	// left is what is left of maxMatched.
	left int
}

// Enter reads the .dockerignore of the context: that of the Dockerfile, else the general
// one. Only those at the top are read.
func (i *ignoring) Enter(name string, dir int) error {
	if name != "" {
		return nil
	}
	i.left = maxMatched
	for _, file := range []string{i.dockerfile + ".dockerignore", ".dockerignore"} {
		lines, err := readIgnore(dir, file)
		if err == nil && len(lines) > maxPatterns {
			err = fmt.Errorf("it has more than %d patterns", maxPatterns)
		}
		if err == nil && lines != nil {
			i.count = len(lines)
			i.patterns, err = patternmatcher.New(lines)
		}
		if err != nil {
			return refused("%s cannot be used (%v): mend it.", path.Join(i.root, file), err)
		}
		if i.patterns != nil {
			return nil
		}
	}
	return nil
}

// readIgnore returns the patterns of a file in an open folder, nil if there is none. A
// symbolic link, or a file behind one, counts as none.
func readIgnore(dir int, name string) ([]string, error) {
	text, err := filesystem.ReadWithinAt(dir, name, maxIgnore)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, filesystem.ErrLink), errors.Is(err, filesystem.ErrIrregular):
		return nil, nil
	case err != nil:
		return nil, err
	}
	lines, err := ignorefile.ReadAll(bytes.NewReader(text))
	if lines == nil {
		lines = []string{}
	}
	return lines, err
}

// Skip reports whether a path is excluded.
func (i *ignoring) Skip(name string, isDir bool) (bool, error) {
	switch {
	case name == inlineName:
		return true, nil
	case i.patterns == nil, name == i.dockerfile, isDir && strings.HasPrefix(i.dockerfile, name+"/"):
		return false, nil
	}
	// Each part of a path is compared: an excluded folder excludes what is below it.
	if i.left -= i.count * (1 + strings.Count(name, "/")); i.left < 0 {
		return false, refused("The .dockerignore of %s has too many patterns for so many files: use fewer, or exclude whole folders.", i.root)
	}
	out, err := i.patterns.MatchesOrParentMatches(name)
	if err != nil {
		return false, refused("The .dockerignore of %s cannot be used (%v): mend it.", i.root, err)
	}
	return out && !(isDir && i.patterns.Exclusions()), nil
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
