package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/archive"
)

// CopyOptions say how to copy between the host and a sandbox.
type CopyOptions struct {
	FileOptions
	// Follow copies what the source leads to when it is a symbolic link. Links
	// below it are always kept.
	Follow bool
	// NoOwner gives the copies to whoever makes them: User, or the caller's own
	// user on the host. Otherwise owners are kept by number where that is allowed.
	NoOwner bool
	// Special makes devices and FIFOs, which otherwise are left out and counted.
	Special bool
	// Progress is told of what has moved since its last call. May be nil. After
	// the daemon was away the copy begins again, and restarted is true once.
	Progress func(files, bytes int64, restarted bool)
}

// Copied counts what arrived.
type Copied struct {
	Files, Bytes int64
	// Skipped are devices and FIFOs that were left out.
	Skipped int64
}

// ReadArchive writes a file or tree of a sandbox to w, as a tar archive in which
// it has the name; the last part of path when that is empty, and what is in it
// alone when it is ".". It cannot be resumed: a daemon that goes away ends it.
//
// Whatever runs in the sandbox decides what the archive says. CopyFrom unpacks it
// safely.
func (c *Client) ReadArchive(ctx context.Context, sandbox, path, name string, w io.Writer, o CopyOptions) error {
	in := &agboxv1.CopyOutRequest{SandboxId: sandbox, Path: path, Name: name, Follow: o.Follow, User: o.User}
	var sink error
	err := c.repeated(ctx, func(api agboxv1.FileServiceClient) (again bool, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := api.CopyOut(ctx, in)
		if err != nil {
			return true, err
		}
		for again = true; ; again = false {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return false, nil
			}
			if err != nil {
				return again, c.decode(ctx, err).begun(again)
			}
			if _, sink = w.Write(m.GetData()); sink != nil {
				return false, sink
			}
		}
	})
	if sink != nil {
		return sink
	}
	return err
}

// begun keeps an error from being taken for one that can be waited out when the
// call has already had an effect.
func (e *Error) begun(again bool) *Error {
	if !again && e.Reason == agboxv1.ErrorReason_DAEMON_STOPPING.String() {
		cut := *e
		cut.Reason, cut.lost, cut.cause = "", true, ErrDaemonUnreachable
		cut.Message = "agboxd stopped during the transfer. Start the transfer again."
		return &cut
	}
	return e
}

// WriteArchive unpacks a tar archive in a directory of a sandbox, which must exist.
// With only set, an archive that holds anything else than that name is refused. It
// cannot be resumed, but may be repeated with the same archive.
func (c *Client) WriteArchive(ctx context.Context, sandbox, dir, only string, r io.Reader, o CopyOptions) (Copied, error) {
	special := agboxv1.SpecialFiles_SPECIAL_FILES_SKIP
	if o.Special {
		special = agboxv1.SpecialFiles_SPECIAL_FILES_MAKE
	}
	open := &agboxv1.CopyInOpen{SandboxId: sandbox, Path: dir, Only: only, NoOwner: o.NoOwner, Special: special, User: o.User}
	src := &counting{r: r}
	var done Copied
	var source error
	err := c.repeated(ctx, func(api agboxv1.FileServiceClient) (again bool, err error) {
		var resp *agboxv1.CopyInResponse
		resp, source, err = sendArchive(ctx, api, open, src)
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

func sendArchive(ctx context.Context, api agboxv1.FileServiceClient, open *agboxv1.CopyInOpen, r io.Reader) (resp *agboxv1.CopyInResponse, source, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also tells the sandbox when r failed
	stream, err := api.CopyIn(ctx)
	if err != nil {
		return nil, nil, err
	}
	err = stream.Send(&agboxv1.CopyInRequest{Item: &agboxv1.CopyInRequest_Open{Open: open}})
	if err == nil {
		source, err = send(r, func(data []byte) error {
			return stream.Send(&agboxv1.CopyInRequest{Item: &agboxv1.CopyInRequest_Data{Data: data}})
		})
	}
	if source != nil {
		return nil, source, source
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	resp, err = stream.CloseAndRecv()
	return resp, nil, err
}

// localError says what a failure on the host's side of a copy means.
func localError(what string, err error) error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	e := &Error{Code: codes.Unknown, Message: fmt.Sprintf("%s failed: %v.", what, err), cause: err}
	var one *archive.Failure
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ended(err)
	case archive.IsRefusal(err):
		e.Code, e.Reason = codes.InvalidArgument, agboxv1.ErrorReason_ARCHIVE_REFUSED.String()
		e.Message = fmt.Sprintf("%s failed: %v. Nothing was written outside the target.", what, err)
	case errors.Is(err, fs.ErrNotExist):
		e.Code = codes.NotFound
	case errors.Is(err, fs.ErrPermission):
		e.Code = codes.PermissionDenied
	case errors.Is(err, fs.ErrExist):
		e.Code = codes.AlreadyExists
	}
	if errors.As(err, &one) {
		e.Message = fmt.Sprintf("%s failed: could not %s %q: %v.", what, one.Op, one.Name, one.Err)
	}
	return e
}
