package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/client"
)

// maxLinks bounds the symbolic links that ReadFile follows. The engine resolves all of
// them at once, so a second one appears only if a file is replaced meanwhile.
const maxLinks = 4

// ReadFile returns the content of a file of a container, which need not run. It follows
// symbolic links inside the container. A missing file is empty. It fails if the file is
// not a regular one or has more than limit bytes, and with errdefs.ErrNotFound if the
// container does not exist.
func (e *Engine) ReadFile(ctx context.Context, id, path string, limit int64) ([]byte, error) {
	var content []byte
	err := e.call(ctx, "read "+path+" of the container", func(cli *client.Client) (err error) {
		content, err = readFile(ctx, cli, id, path, limit)
		return err
	})
	if errdefs.IsNotFound(err) && !strings.Contains(err.Error(), "No such container") {
		return nil, nil
	}
	return content, err
}

func readFile(ctx context.Context, cli *client.Client, id, path string, limit int64) ([]byte, error) {
	for range maxLinks {
		stream, stat, err := cli.CopyFromContainer(ctx, id, path)
		if err != nil {
			return nil, err
		}
		if stat.Mode&os.ModeSymlink != 0 {
			_ = stream.Close() // only the link
			path = stat.LinkTarget
			continue
		}
		content, err := oneFile(stream, limit)
		return content, errors.Join(err, stream.Close())
	}
	return nil, fmt.Errorf("%s leads through too many symbolic links: %w", path, errdefs.ErrFailedPrecondition)
}

// Archive returns a file or folder of a container, which need not run, as a tar stream. It
// follows symbolic links inside the container. The engine holds the container until the
// stream is closed. It fails with errdefs.ErrNotFound if there is no such file or container.
func (e *Engine) Archive(ctx context.Context, id, path string) (stream io.ReadCloser, err error) {
	err = e.call(ctx, "read "+path+" of the container", func(cli *client.Client) error {
		for range maxLinks {
			found, stat, err := cli.CopyFromContainer(ctx, id, path)
			if err != nil {
				return err
			}
			if stat.Mode&os.ModeSymlink == 0 {
				stream = found
				return nil
			}
			_ = found.Close() // only the link
			path = stat.LinkTarget
		}
		return fmt.Errorf("%s leads through too many symbolic links: %w", path, errdefs.ErrFailedPrecondition)
	})
	return stream, err
}

// oneFile reads the one regular file of an archive.
func oneFile(archive io.Reader, limit int64) ([]byte, error) {
	files := tar.NewReader(archive)
	header, err := files.Next()
	if err != nil {
		return nil, fmt.Errorf("read the engine's archive: %w", err)
	}
	if header.Typeflag != tar.TypeReg || header.Size > limit {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes: %w", header.Name, limit, errdefs.ErrFailedPrecondition)
	}
	content, err := io.ReadAll(files)
	if err != nil {
		return nil, fmt.Errorf("read the engine's archive: %w", err)
	}
	return content, nil
}
