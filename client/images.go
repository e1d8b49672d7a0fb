package client

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/filesystem"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ListImages returns the engine's images, newest first.
func (c *Client) ListImages(ctx context.Context) ([]*agboxv1.Image, error) {
	out, err := c.sandboxes.ListImages(ctx, &agboxv1.ListImagesRequest{}, idempotent)
	return out.GetImages(), err
}

// RemoveImage removes a name of an image, and the image with its last name; with onlyUnused, only
// one that agbox has built and that nothing uses. The error has the reason IMAGE_IN_USE if a
// container uses it.
func (c *Client) RemoveImage(ctx context.Context, image string, onlyUnused bool) error {
	_, err := c.sandboxes.RemoveImage(ctx, &agboxv1.RemoveImageRequest{Image: image, OnlyUnusedBuilt: onlyUnused})
	return err
}

// PullImage pulls an image. It reports progress to progress, which may be nil.
func (c *Client) PullImage(ctx context.Context, in *agboxv1.PullImageRequest, progress func(*agboxv1.PullImageResponse)) (*agboxv1.Image, error) {
	var pulled *agboxv1.Image
	err := follow(ctx, c, c.sandboxes.PullImage, endless, func() *agboxv1.PullImageRequest { return in }, func(m *agboxv1.PullImageResponse) (bool, error) {
		if pulled = m.GetImage(); pulled == nil && progress != nil {
			progress(m)
		}
		return pulled != nil, nil
	})
	return pulled, err
}

// buildPiece is the maximum size of the build context in one message, in bytes.
const buildPiece = 256 << 10

// BuildImage builds an image of the folder dir and passes the output of the build to
// output, which may be nil. Files that dir's .dockerignore names are not sent. It returns
// the image's id. A build is not repeated if the daemon goes away.
func (c *Client) BuildImage(ctx context.Context, options *agboxv1.BuildOptions, dir string, output func(string)) (id string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.sandboxes.BuildImage(ctx)
	if err != nil {
		return "", c.decode(ctx, err)
	}
	if err := stream.Send(&agboxv1.BuildImageRequest{Part: &agboxv1.BuildImageRequest_Options{Options: options}}); err != nil && !errors.Is(err, io.EOF) {
		return "", c.decode(ctx, err)
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	var packing error
	sending.Go(func() {
		if packing = sendContext(ctx, stream, dir, options.GetDockerfile()); packing != nil {
			cancel() // an incomplete context must not be built
		}
	})
	for {
		m, err := stream.Recv()
		switch {
		case err != nil:
			cancel()
			sending.Wait()
			if packing != nil {
				return "", packing
			}
			return "", c.decode(ctx, err)
		case m.GetImageId() != "":
			return m.GetImageId(), nil
		case output != nil:
			output(m.GetOutput())
		}
	}
}

// sendContext sends a folder as a tar archive. The end of the call ends it without an
// error, because the call returns the error itself.
func sendContext(ctx context.Context, stream grpc.BidiStreamingClient[agboxv1.BuildImageRequest, agboxv1.BuildImageResponse], dir, dockerfile string) error {
	w := &pieces{send: func(piece []byte) error {
		return stream.Send(&agboxv1.BuildImageRequest{Part: &agboxv1.BuildImageRequest_Context{Context: piece}})
	}}
	err := packContext(ctx, w, dir, dockerfile)
	if w.failed != nil || ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = w.flush()
	}
	if err != nil && w.failed == nil {
		return &Error{Code: codes.InvalidArgument, cause: err, Message: fmt.Sprintf("The folder %s cannot be sent: %v.", dir, err)}
	}
	_ = stream.CloseSend() // never fails
	return nil
}

// pieces collects written bytes into messages.
type pieces struct {
	send   func([]byte) error
	buf    []byte
	failed error // error of send
}

func (p *pieces) Write(b []byte) (int, error) {
	p.buf = append(p.buf, b...)
	for len(p.buf) >= buildPiece {
		if p.failed = p.send(p.buf[:buildPiece]); p.failed != nil {
			return 0, p.failed
		}
		p.buf = append([]byte(nil), p.buf[buildPiece:]...)
	}
	return len(b), nil
}

func (p *pieces) flush() error {
	if len(p.buf) > 0 {
		p.failed = p.send(p.buf)
	}
	return p.failed
}

// packContext writes a folder as a tar archive, without the files that its .dockerignore
// names. It leaves out owners, as the engine's own client does.
func packContext(ctx context.Context, to io.Writer, dir, dockerfile string) error {
	if dockerfile == "" {
		dockerfile = "Dockerfile"
	}
	ignored, err := ignoredFiles(dir, dockerfile)
	if err != nil {
		return err
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root) // only used to open files
	archive := tar.NewWriter(to)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		out, err := ignored.MatchesOrParentMatches(name)
		switch {
		case err != nil:
			return err
		case !out, name == dockerfile, name == ".dockerignore":
			return packFile(archive, root, path, name, entry)
		case entry.IsDir() && !ignored.Exclusions() && !strings.HasPrefix(dockerfile, name+"/"):
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

// maxIgnore is the maximum size of a .dockerignore in bytes.
const maxIgnore = 1 << 20

// ignoredFiles reads the patterns of the Dockerfile's own ignore file, or else of the
// folder's.
func ignoredFiles(dir, dockerfile string) (*patternmatcher.PatternMatcher, error) {
	var patterns []string
	for _, name := range []string{dockerfile + ".dockerignore", ".dockerignore"} {
		content, err := filesystem.ReadWithin(dir, name, maxIgnore)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			patterns, err = ignorefile.ReadAll(bytes.NewReader(content))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		break
	}
	return patternmatcher.New(patterns)
}

func packFile(archive *tar.Writer, root int, path, name string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	target := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	case info.Mode()&(fs.ModeSocket|fs.ModeDevice|fs.ModeNamedPipe) != 0:
		return nil
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name, header.Uid, header.Gid, header.Uname, header.Gname = name, 0, 0, "", ""
	if info.IsDir() {
		header.Name += "/"
	}
	if !info.Mode().IsRegular() {
		return archive.WriteHeader(header)
	}
	file, err := filesystem.OpenWithinAt(root, name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer file.Close() // only read
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.CopyN(archive, file, header.Size)
	return err
}

// BuildSandboxImages makes the images that a request for a sandbox builds, without the
// sandbox. tell gets lines of output, and each image when it is complete. The call is not
// repeated if the daemon goes away.
func (c *Client) BuildSandboxImages(ctx context.Context, in *agboxv1.CreateSandboxRequest, tell func(*agboxv1.BuildSandboxImagesResponse)) error {
	_, err := readStream(ctx, c.sandboxes.BuildSandboxImages, &agboxv1.BuildSandboxImagesRequest{Create: in}, ends, func(m *agboxv1.BuildSandboxImagesResponse) (bool, error) {
		tell(m)
		return false, nil
	})
	if err != nil {
		return c.decode(ctx, err)
	}
	return nil
}
