package client

import (
	"context"
	"io"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/covers"
)

// Executable is what a sandbox brings to a folder of this machine and what programs of this machine
// execute, agents read as instructions or agbox reads the next time, because it is there.
type Executable = covers.Executable

// Agree decides whether a folder of this machine gets such files. If not, they are left out, and the
// rest comes.
type Agree = covers.Agree

// CopyOptions are the options of a copy between the host and a sandbox.
type CopyOptions struct {
	FileOptions
	// Follow copies the target of the source if the source is a symbolic link. Links
	// below it are always kept.
	Follow bool
	// NoOwner makes User, or on the host the caller's own user, the owner of the copies.
	// Otherwise numeric owners are kept where that is permitted.
	NoOwner bool
	// Special makes devices and FIFOs. Otherwise they are skipped and counted. On this
	// machine devices are always skipped.
	Special bool
	// Progress receives the progress since its previous call. May be nil. After a restart
	// of the daemon the copy starts again, and restarted is true once.
	Progress func(files, bytes int64, restarted bool)
	// Executable decides, for CopyFrom, about each file that the copy adds or changes and that
	// this machine would execute, and about each part of what git would take for a repository,
	// with paths that are absolute. What may not come is left out. Nil means that all may come.
	Executable func(Executable) bool
}

// Copied has the totals of a copy.
type Copied struct {
	Files, Bytes int64
	// Skipped are devices and FIFOs that were skipped.
	Skipped int64
	// Executable are the new and changed files of CopyFrom that this machine executes, and Left
	// those that were left out. Their paths are absolute.
	Executable, Left []Executable
}

// ReadArchive writes a file or tree of a sandbox to w as a tar archive. name is its name
// in the archive. An empty name means the last component of path. "." means only the
// contents. It cannot be resumed: it fails if the daemon stops.
//
// The processes in the sandbox control the content of the archive. CopyFrom unpacks it
// safely.
func (c *Client) ReadArchive(ctx context.Context, sandbox, path, name string, w io.Writer, o CopyOptions) error {
	in := &agboxv1.CopyOutRequest{SandboxId: sandbox, Path: path, Name: name, Follow: o.Follow, User: o.User}
	var sink error
	err := c.repeated(ctx, c.newPatience(), func() (again bool, err error) {
		got, err := readStream(ctx, c.files.CopyOut, in, ends, func(m *agboxv1.CopyOutResponse) (bool, error) {
			_, sink = w.Write(m.GetData())
			return false, sink
		})
		if err != nil && sink == nil {
			err = c.decode(ctx, err).begun(!got)
		}
		return !got, err
	})
	if sink != nil {
		return sink
	}
	return err
}

// WriteArchive unpacks a tar archive in an existing directory of a sandbox. If only is
// set, an archive with anything outside that name is refused. It cannot be resumed, but
// may be repeated with the same archive.
func (c *Client) WriteArchive(ctx context.Context, sandbox, dir, only string, r io.Reader, o CopyOptions) (Copied, error) {
	special := agboxv1.SpecialFiles_SPECIAL_FILES_SKIP
	if o.Special {
		special = agboxv1.SpecialFiles_SPECIAL_FILES_MAKE
	}
	open := &agboxv1.CopyInRequest{Item: &agboxv1.CopyInRequest_Open{
		Open: &agboxv1.CopyInOpen{SandboxId: sandbox, Path: dir, Only: only, NoOwner: o.NoOwner, Special: special, User: o.User},
	}}
	piece := func(data []byte) *agboxv1.CopyInRequest {
		return &agboxv1.CopyInRequest{Item: &agboxv1.CopyInRequest_Data{Data: data}}
	}
	src := &counting{r: r}
	var done Copied
	var source error
	err := c.repeated(ctx, c.newPatience(), func() (again bool, err error) {
		var resp *agboxv1.CopyInResponse
		resp, source, err = upload(ctx, c.files.CopyIn, open, piece, src)
		done = Copied{Files: int64(resp.GetFiles()), Bytes: int64(resp.GetBytes()), Skipped: int64(resp.GetSkipped())}
		if err != nil && source == nil {
			err = c.decode(ctx, err).begun(src.n == 0)
		}
		return src.n == 0, err
	})
	if source != nil {
		return done, source
	}
	return done, err
}

type counting struct {
	r io.Reader
	n int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
