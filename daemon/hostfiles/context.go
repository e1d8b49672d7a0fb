package hostfiles

import (
	"context"
	"io"

	"github.com/agbox/agbox/workspace/archive"
)

// PackFiltered writes the content of a folder to w as a tar archive, without what the
// filter excludes, and tells record of it. All of it belongs to root. Errors of the host's files
// are fault.Errors.
func (t *Tree) PackFiltered(ctx context.Context, w io.Writer, filter archive.Filter, record archive.Record) error {
	return t.pack(ctx, w, archive.PackOptions{Name: ".", Owner: &archive.Owner{}, Filter: filter, Record: record})
}

// PackBelow is PackFiltered of a whole folder, below a name in the archive.
func (t *Tree) PackBelow(ctx context.Context, w io.Writer, name string, record archive.Record) error {
	return t.pack(ctx, w, archive.PackOptions{Name: name, Owner: &archive.Owner{}, Record: record})
}
