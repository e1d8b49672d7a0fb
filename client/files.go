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
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
)

// files returns the API of files over the live connection.
func (c *Client) files(ctx context.Context) (agboxv1.FileServiceClient, error) {
	if _, err := c.open(ctx); err != nil {
		return nil, err
	}
	live := c.live.Load()
	if live == nil {
		return nil, &Error{Code: codes.FailedPrecondition, Message: "The client is closed."}
	}
	return agboxv1.NewFileServiceClient(live.grpc), nil
}

// fileMethod is a unary method of the files' API.
type fileMethod[Req, Resp any] func(agboxv1.FileServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error)

// fileCall is unary for the files' API.
func fileCall[Req, Resp any](ctx context.Context, c *Client, m fileMethod[Req, Resp], in *Req, r repeat) (out *Resp, err error) {
	err = c.repeated(ctx, func(api agboxv1.FileServiceClient) (again bool, err error) {
		var to peer.Peer
		out, err = m(api, ctx, in, grpc.Peer(&to))
		// gRPC fills in the peer only when the call got as far as a connection.
		return r == idempotent || to.Addr == nil, err
	})
	return out, err
}

// repeated does something until it is done, and again while the daemon is away
// if the thing says that it may be repeated.
func (c *Client) repeated(ctx context.Context, once func(agboxv1.FileServiceClient) (again bool, err error)) error {
	return c.repeatedFor(ctx, c.newPatience(ctx), once)
}

// repeatedFor is repeated for a thing that gets on: it resets wait when it has.
func (c *Client) repeatedFor(ctx context.Context, wait *patience, once func(agboxv1.FileServiceClient) (again bool, err error)) error {
	for {
		api, err := c.files(ctx)
		if err != nil {
			return err
		}
		again, err := once(api)
		if err == nil {
			c.answered.Store(true)
			return nil
		}
		var own *Error
		if !errors.As(err, &own) {
			own = c.decode(ctx, err)
		}
		if !again && own.Reason != agboxv1.ErrorReason_DAEMON_STOPPING.String() {
			return own
		}
		if err := wait.again(ctx, own); err != nil {
			return err
		}
	}
}

// FileOptions go with every call about files.
type FileOptions struct {
	// User is whose rights are used: user, uid, user:group or uid:gid. Root when empty.
	User string
}

// StatFile describes a file of a sandbox; with follow, what a symbolic link leads to.
func (c *Client) StatFile(ctx context.Context, sandbox, path string, follow bool, o FileOptions) (*agboxv1.FileInfo, error) {
	in := &agboxv1.StatFileRequest{SandboxId: sandbox, Path: path, Follow: follow, User: o.User}
	out, err := fileCall(ctx, c, agboxv1.FileServiceClient.Stat, in, idempotent)
	return out.GetFile(), err
}

// ListFiles goes through a directory of a sandbox, in no order. It fetches page by
// page; an error ends it.
func (c *Client) ListFiles(ctx context.Context, sandbox, path string, o FileOptions) iter.Seq2[*agboxv1.FileInfo, error] {
	return func(yield func(*agboxv1.FileInfo, error) bool) {
		in := &agboxv1.ListFilesRequest{SandboxId: sandbox, Path: path, User: o.User}
		for {
			out, err := fileCall(ctx, c, agboxv1.FileServiceClient.List, in, idempotent)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, f := range out.GetFiles() {
				if !yield(f, nil) {
					return
				}
			}
			if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
				return
			}
		}
	}
}

// MakeDirectory makes a directory with mode 0755; with parents also those above
// it, and then one that is there is no error.
func (c *Client) MakeDirectory(ctx context.Context, sandbox, path string, parents bool, o FileOptions) error {
	in := &agboxv1.MakeDirectoryRequest{SandboxId: sandbox, Path: path, Parents: parents, User: o.User}
	_, err := fileCall(ctx, c, agboxv1.FileServiceClient.MakeDirectory, in, repeat(parents))
	return err
}

// RemoveFile removes a file, a symbolic link or an empty directory; with recursive
// a directory with all that is in it. When ctx ends it removes nothing more.
func (c *Client) RemoveFile(ctx context.Context, sandbox, path string, recursive bool, o FileOptions) error {
	in := &agboxv1.RemoveFileRequest{SandboxId: sandbox, Path: path, Recursive: recursive, User: o.User}
	_, err := fileCall(ctx, c, agboxv1.FileServiceClient.Remove, in, atMostOnce)
	return err
}

// MoveFile renames a file or directory; with noReplace only if the new path is free.
func (c *Client) MoveFile(ctx context.Context, sandbox, from, to string, noReplace bool, o FileOptions) error {
	in := &agboxv1.MoveFileRequest{SandboxId: sandbox, Path: from, NewPath: to, NoReplace: noReplace, User: o.User}
	_, err := fileCall(ctx, c, agboxv1.FileServiceClient.Move, in, atMostOnce)
	return err
}

// ReadFile writes length bytes of a file from offset on to w; a length of 0 means
// to the end. A daemon that goes away is waited for, and the reading goes on if the
// file is still the same.
func (c *Client) ReadFile(ctx context.Context, sandbox, path string, offset, length uint64, w io.Writer, o FileOptions) error {
	in := &agboxv1.ReadFileRequest{SandboxId: sandbox, Path: path, Offset: offset, Length: length, User: o.User}
	r := &fileReading{w: w, in: in, wait: c.newPatience(ctx)}
	err := c.repeatedFor(ctx, r.wait, func(api agboxv1.FileServiceClient) (bool, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return r.sink == nil, r.once(ctx, api)
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

func (r *fileReading) once(ctx context.Context, api agboxv1.FileServiceClient) error {
	if r.done {
		return nil // broke off after the last byte that was asked for
	}
	stream, err := api.Read(ctx, r.in)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if info := m.GetFile(); info != nil {
			if r.first != nil && (info.GetInode() != r.first.GetInode() || !proto.Equal(info.GetModified(), r.first.GetModified())) {
				return &Error{Code: codes.Aborted, Message: fmt.Sprintf("The file %s changed while it was being read. Read it again.", r.in.GetPath())}
			}
			r.first = info
			continue
		}
		r.wait.reset()
		n := uint64(len(m.GetData()))
		if _, r.sink = r.w.Write(m.GetData()); r.sink != nil {
			return r.sink
		}
		r.in.Offset += n
		if r.in.Length > 0 {
			r.in.Length -= min(n, r.in.Length)
			r.done = r.in.Length == 0
		}
	}
}

// WriteOptions say how to write a file.
type WriteOptions struct {
	FileOptions
	// Mode are its permissions; nil keeps those of the file that is replaced, or
	// gives 0644.
	Mode *uint32
	// UID and GID are its owner; nil keeps that of the file that is replaced, or
	// gives it to the user.
	UID, GID *uint32
	// CreateOnly refuses to replace anything.
	CreateOnly bool
	// Parents makes missing directories above it.
	Parents bool
}

// WriteFile replaces a file by what r holds, in one step: whoever reads it sees
// the old content or all of the new one. If r is an io.Seeker too, and CreateOnly
// is not set, it is written again from its beginning after the daemon was away.
func (c *Client) WriteFile(ctx context.Context, sandbox, path string, r io.Reader, o WriteOptions) (*agboxv1.FileInfo, error) {
	seeker, _ := r.(io.Seeker)
	var begin int64
	if seeker != nil {
		var err error
		if begin, err = seeker.Seek(0, io.SeekCurrent); err != nil {
			seeker = nil
		}
	}
	open := &agboxv1.WriteFileOpen{
		SandboxId: sandbox, Path: path, Mode: o.Mode, Uid: o.UID, Gid: o.GID,
		CreateOnly: o.CreateOnly, Parents: o.Parents, User: o.User,
	}
	var out *agboxv1.FileInfo
	var source error
	err := c.repeated(ctx, func(api agboxv1.FileServiceClient) (again bool, err error) {
		if seeker != nil {
			if _, source = seeker.Seek(begin, io.SeekStart); source != nil {
				return false, source
			}
		}
		out, source, err = writeOnce(ctx, api, open, r)
		again = seeker != nil && !o.CreateOnly && source == nil
		if err != nil && source == nil {
			err = c.decode(ctx, err).begun(again)
		}
		return again, err
	})
	if source != nil {
		return nil, source
	}
	return out, err
}

// pieceSize is how much is sent in one message, in bytes.
const pieceSize = 256 << 10

// writeOnce makes one attempt. An error of r is source too: the stream is given up
// then, so that nothing is written.
func writeOnce(ctx context.Context, api agboxv1.FileServiceClient, open *agboxv1.WriteFileOpen, r io.Reader) (out *agboxv1.FileInfo, source, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.Write(ctx)
	if err != nil {
		return nil, nil, err
	}
	err = stream.Send(&agboxv1.WriteFileRequest{Item: &agboxv1.WriteFileRequest_Open{Open: open}})
	if err == nil {
		source, err = send(r, func(data []byte) error {
			return stream.Send(&agboxv1.WriteFileRequest{Item: &agboxv1.WriteFileRequest_Data{Data: data}})
		})
	}
	if source != nil {
		return nil, source, source
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	resp, err := stream.CloseAndRecv() // has the reason if sending failed
	return resp.GetFile(), nil, err
}

// send reads r to its end in pieces. It tells errors of r from those of sending.
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
		case source == io.EOF: //nolint:errorlint // what wraps it, or looks like it, says that the source broke off
			return nil, nil
		case source != nil:
			return source, source
		}
	}
}

// fill reads until p is full. Unlike io.ReadFull it hands on the error of r as it is,
// so that a source that breaks off is not taken for one that has ended.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = r.Read(p[n:])
		n += more
	}
	return n, err
}

// FileEvent is something that a watch tells.
type FileEvent struct {
	// Change is nil when changes were lost.
	Change *agboxv1.FileChange
	// Lost says why changes may have been lost: look at the directory anew.
	Lost string
}

// WatchFiles yields what changes in a directory of a sandbox; with recursive also
// below it. The first event has neither Change nor Lost: from then on no change is
// missed. It ends when the directory is removed or moved away. After the
// daemon was away it goes on, with an event that says so.
func (c *Client) WatchFiles(ctx context.Context, sandbox, path string, recursive bool, o FileOptions) iter.Seq2[FileEvent, error] {
	return func(yield func(FileEvent, error) bool) {
		in := &agboxv1.WatchFilesRequest{SandboxId: sandbox, Path: path, Recursive: recursive, User: o.User}
		w := &fileWatch{wait: c.newPatience(ctx), yield: func(e FileEvent) bool { return yield(e, nil) }}
		err := c.repeatedFor(ctx, w.wait, func(api agboxv1.FileServiceClient) (bool, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return true, w.once(ctx, api, in)
		})
		if err != nil {
			yield(FileEvent{}, err)
		}
	}
}

type fileWatch struct {
	wait    *patience
	yield   func(FileEvent) bool
	watched bool
}

// once watches until the stream ends; nil when the watch is over.
func (w *fileWatch) once(ctx context.Context, api agboxv1.FileServiceClient, in *agboxv1.WatchFilesRequest) error {
	stream, err := api.Watch(ctx, in)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		w.wait.reset()
		e := FileEvent{Change: m.GetChange(), Lost: m.GetOverflow()}
		if m.GetWatching() {
			if w.watched {
				e.Lost = "The daemon was away, and changes may have been missed."
			}
			w.watched = true
		}
		if !w.yield(e) {
			return nil
		}
	}
}
