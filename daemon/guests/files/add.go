package files

import (
	"context"
	"io"
	"path"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/workspace/archive"
)

// add adds lines to the end of a file of root, unless the file has them. A file that the
// sandbox cannot change stays as it is: its root may be read-only.
func (c *copyIn) add(ctx context.Context, target, lines string) error {
	content, err := c.read(ctx, target)
	if err == nil {
		content, missing := withLines(string(content), lines)
		if !missing || len(content) >= hostfiles.MaxUserFile {
			return nil
		}
		err = c.replace(ctx, target, content)
	}
	if f := fault.Of(err); f != nil && !errdefs.IsUnavailable(f.Class) {
		return nil
	}
	return err
}

// withLines returns a text with lines at its end. missing is false if it has them.
func withLines(text, lines string) (all string, missing bool) {
	if strings.Contains("\n"+text, "\n"+lines) {
		return text, false
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + lines, true
}

// replace writes a file of root.
func (c *copyIn) replace(ctx context.Context, target, content string) error {
	tree, err := c.check.Open(hostfiles.Copy{Content: content, Target: target})
	if err != nil {
		return err
	}
	dir, name, err := c.destination(ctx, target, false, archive.Owner{})
	if err != nil {
		return err
	}
	return c.send(ctx, dir, path.Base(name), func(w io.Writer) error {
		return tree.Pack(ctx, w, name, archive.Owner{}, nil, func(int64, int64) {})
	})
}
