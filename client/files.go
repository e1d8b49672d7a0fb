package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// FileOptions are the options of all file calls.
type FileOptions struct {
	// User has the rights of the call: user, uid, user:group or uid:gid. Empty means
	// root.
	User string
}

// StatFile describes a file of a sandbox. With follow it describes a link's target.
func (c *Client) StatFile(ctx context.Context, sandbox, path string, follow bool, o FileOptions) (*agboxv1.FileInfo, error) {
	out, err := c.files.Stat(ctx, &agboxv1.StatFileRequest{SandboxId: sandbox, Path: path, Follow: follow, User: o.User}, idempotent)
	return out.GetFile(), err
}

// ListFiles yields the entries of a directory of a sandbox, unordered. It fetches page by
// page. An error ends it.
func (c *Client) ListFiles(ctx context.Context, sandbox, path string, o FileOptions) iter.Seq2[*agboxv1.FileInfo, error] {
	return sequence(func(give func(*agboxv1.FileInfo) bool) error {
		in := &agboxv1.ListFilesRequest{SandboxId: sandbox, Path: path, User: o.User}
		return pages(give, func() ([]*agboxv1.FileInfo, bool, error) {
			out, err := c.files.List(ctx, in, idempotent)
			in.PageToken = out.GetNextPageToken()
			return out.GetFiles(), in.PageToken != "", err
		})
	})
}

// MakeDirectory makes a directory with mode 0755. With parents it also makes missing
// parents and accepts an existing directory.
func (c *Client) MakeDirectory(ctx context.Context, sandbox, path string, parents bool, o FileOptions) error {
	in := &agboxv1.MakeDirectoryRequest{SandboxId: sandbox, Path: path, Parents: parents, User: o.User}
	_, err := c.files.MakeDirectory(ctx, in, repetition{harmless: parents})
	return err
}

// RemoveFile removes a file, a symbolic link or an empty directory. With recursive it
// removes a directory with its content. It stops when ctx ends.
func (c *Client) RemoveFile(ctx context.Context, sandbox, path string, recursive bool, o FileOptions) error {
	_, err := c.files.Remove(ctx, &agboxv1.RemoveFileRequest{SandboxId: sandbox, Path: path, Recursive: recursive, User: o.User})
	return err
}

// MoveFile renames a file or directory. With noReplace it fails if the new path exists.
func (c *Client) MoveFile(ctx context.Context, sandbox, from, to string, noReplace bool, o FileOptions) error {
	_, err := c.files.Move(ctx, &agboxv1.MoveFileRequest{SandboxId: sandbox, Path: from, NewPath: to, NoReplace: noReplace, User: o.User})
	return err
}

// ReadFile writes length bytes of a file to w, from offset on. A length of 0 means to the
// end. If the daemon goes away, the client waits for it and continues if the file is
// unchanged.
func (c *Client) ReadFile(ctx context.Context, sandbox, path string, offset, length uint64, w io.Writer, o FileOptions) error {
	in := &agboxv1.ReadFileRequest{SandboxId: sandbox, Path: path, Offset: offset, Length: length, User: o.User}
	r := &fileReading{w: w, in: in, wait: c.newPatience()}
	err := c.repeated(ctx, r.wait, func() (bool, error) {
		if r.done {
			return true, nil // broke after the last requested byte
		}
		_, err := readStream(ctx, c.files.Read, in, ends, r.take)
		return r.sink == nil, err
	})
	if r.sink != nil {
		return r.sink // the caller's own writer
	}
	return err
}

type fileReading struct {
	wait  *patience
	w     io.Writer
	in    *agboxv1.ReadFileRequest
	first *agboxv1.FileInfo
	sink  error
	done  bool
}

func (r *fileReading) take(m *agboxv1.ReadFileResponse) (done bool, err error) {
	if info := m.GetFile(); info != nil {
		if r.first != nil && (info.GetInode() != r.first.GetInode() || !proto.Equal(info.GetModified(), r.first.GetModified())) {
			return false, &Error{Code: codes.Aborted, Message: fmt.Sprintf("The file %s changed while it was being read. Read it again.", r.in.GetPath())}
		}
		r.first = info
		return false, nil
	}
	r.wait.reset()
	n := uint64(len(m.GetData()))
	if _, r.sink = r.w.Write(m.GetData()); r.sink != nil {
		return false, r.sink
	}
	r.in.Offset += n
	if r.in.Length > 0 {
		r.in.Length -= min(n, r.in.Length)
		r.done = r.in.Length == 0
	}
	return false, nil
}

// WriteOptions are the options of WriteFile.
type WriteOptions struct {
	FileOptions
	// Mode has the permissions. nil keeps those of the replaced file, or means 0644.
	Mode *uint32
	// UID and GID are the owner. nil keeps that of the replaced file, or means the user.
	UID, GID *uint32
	// CreateOnly fails if the file exists.
	CreateOnly bool
	// Parents makes missing parent directories.
	Parents bool
	// Expected is the SHA-256 of the content that the file must have. The call fails with the
	// reason FILE_CHANGED if it has another one. nil accepts any.
	Expected []byte
}

// WriteFile replaces a file by the content of r atomically: readers see the complete old
// or new content. If r is also an io.Seeker and CreateOnly is not set, the client sends r
// again from its beginning after the daemon was away.
func (c *Client) WriteFile(ctx context.Context, sandbox, path string, r io.Reader, o WriteOptions) (*agboxv1.FileInfo, error) {
	seeker, _ := r.(io.Seeker)
	var begin int64
	if seeker != nil {
		var err error
		if begin, err = seeker.Seek(0, io.SeekCurrent); err != nil {
			seeker = nil
		}
	}
	open := &agboxv1.WriteFileRequest{Item: &agboxv1.WriteFileRequest_Open{Open: &agboxv1.WriteFileOpen{
		SandboxId: sandbox, Path: path, Mode: o.Mode, Uid: o.UID, Gid: o.GID,
		CreateOnly: o.CreateOnly, Parents: o.Parents, User: o.User, ExpectedSha256: o.Expected,
	}}}
	piece := func(data []byte) *agboxv1.WriteFileRequest {
		return &agboxv1.WriteFileRequest{Item: &agboxv1.WriteFileRequest_Data{Data: data}}
	}
	var out *agboxv1.WriteFileResponse
	var source error
	err := c.repeated(ctx, c.newPatience(), func() (again bool, err error) {
		if seeker != nil {
			if _, source = seeker.Seek(begin, io.SeekStart); source != nil {
				return false, source
			}
		}
		out, source, err = upload(ctx, c.files.Write, open, piece, r)
		again = seeker != nil && !o.CreateOnly && source == nil
		if err != nil && source == nil {
			err = c.decode(ctx, err).begun(again)
		}
		return again, err
	})
	if source != nil {
		return nil, source
	}
	return out.GetFile(), err
}

// pieceSize is the size of the data in one message, in bytes.
const pieceSize = 256 << 10

// upload makes one attempt to send first and then r. An error of r is also source. The stream is then
// cancelled: a file is not written, and no more of an archive is unpacked.
func upload[Req, Resp any](ctx context.Context, open func(context.Context, ...grpc.CallOption) (grpc.ClientStreamingClient[Req, Resp], error),
	first *Req, piece func([]byte) *Req, r io.Reader) (out *Resp, source, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		return nil, nil, err
	}
	err = stream.Send(first)
	if err == nil {
		source, err = send(r, func(data []byte) error { return stream.Send(piece(data)) })
	}
	if source != nil {
		return nil, source, source
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	out, err = stream.CloseAndRecv() // the error has the reason if sending failed
	return out, nil, err
}

// send reads r to its end in pieces. It separates errors of r from errors of sending.
func send(r io.Reader, to func([]byte) error) (source, err error) {
	buf := make([]byte, pieceSize)
	for {
		n, source := fill(r, buf)
		if n > 0 {
			if err := to(buf[:n]); err != nil {
				return nil, err
			}
		}
		switch {
		case source == io.EOF: //nolint:errorlint // an error that wraps it means that the source broke
			return nil, nil
		case source != nil:
			return source, source
		}
	}
}

// fill reads until p is full. Unlike io.ReadFull it returns the error of r unchanged, so
// a source that breaks is not taken for one that has ended.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = r.Read(p[n:])
		n += more
	}
	return n, err
}

// FileEvent is an event of WatchFiles.
type FileEvent struct {
	// Change is nil if changes were lost.
	Change *agboxv1.FileChange
	// Lost says why changes may have been lost. Read the directory again then.
	Lost string
}

// WatchFiles yields changes in a directory of a sandbox, with recursive also below it.
// The first event has neither Change nor Lost: no later change is missed. It ends when
// the directory is removed or moved away. After the daemon was away it continues, with an
// event that has Lost set.
func (c *Client) WatchFiles(ctx context.Context, sandbox, path string, recursive bool, o FileOptions) iter.Seq2[FileEvent, error] {
	return sequence(func(give func(FileEvent) bool) error {
		in := &agboxv1.WatchFilesRequest{SandboxId: sandbox, Path: path, Recursive: recursive, User: o.User}
		w := &fileWatch{wait: c.newFollower(), give: give}
		return c.repeated(ctx, w.wait, func() (bool, error) {
			_, err := readStream(ctx, c.files.Watch, in, ends, w.take)
			return true, err
		})
	})
}

type fileWatch struct {
	wait    *patience
	give    func(FileEvent) bool
	watched bool
}

// take passes on a change. done means that the reader wants no more.
func (w *fileWatch) take(m *agboxv1.WatchFilesResponse) (done bool, err error) {
	w.wait.reset()
	e := FileEvent{Change: m.GetChange(), Lost: m.GetOverflow()}
	if m.GetWatching() {
		if w.watched {
			e.Lost = "The daemon was away, and changes may have been missed."
		}
		w.watched = true
	}
	return !w.give(e), nil
}
