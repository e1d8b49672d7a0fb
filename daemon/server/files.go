package server

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/review"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
)

// fileCalls implements FileService.
type fileCalls struct {
	agboxv1.UnimplementedFileServiceServer
	ledger *ledger.Ledger
	files  Files
	loop   Loop
	paths  paths.Install
	life   *lifetime
}

// file makes a small file call.
func (f fileCalls) file(ctx context.Context, sandbox string, op guest.FileOp, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	sb, err := f.ledger.FindSandbox(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	return f.files.Call(ctx, sb.ID, op, req)
}

// Stat describes one file.
func (f fileCalls) Stat(ctx context.Context, req *agboxv1.StatFileRequest) (*agboxv1.StatFileResponse, error) {
	reply, err := f.file(ctx, req.GetSandboxId(), guest.StatFile, &guestv1.FileRequest{
		Path: []byte(req.GetPath()), Follow: req.GetFollow(), User: req.GetUser(),
	})
	if err != nil {
		return nil, err
	}
	return &agboxv1.StatFileResponse{File: fileInfo(reply.GetFiles()[0])}, nil
}

// maxFilePage is the maximum number of entries in a page of List, and maxFilePageBytes
// about the maximum size.
const (
	maxFilePage      = 1000
	maxFilePageBytes = 1 << 20
)

// List describes what is in a directory.
func (f fileCalls) List(ctx context.Context, req *agboxv1.ListFilesRequest) (*agboxv1.ListFilesResponse, error) {
	size := int(req.GetPageSize())
	if size == 0 || size > maxFilePage {
		size = maxFilePage
	}
	cursor := uint64(0)
	if req.GetPageToken() != "" {
		var err error
		if cursor, err = strconv.ParseUint(req.GetPageToken(), 10, 64); err != nil {
			return nil, invalid("page_token: %q is not one that List has given.", req.GetPageToken())
		}
	}
	resp := new(agboxv1.ListFilesResponse)
	for bytes := 0; ; {
		reply, err := f.file(ctx, req.GetSandboxId(), guest.ListFiles, &guestv1.FileRequest{
			Path: []byte(req.GetPath()), User: req.GetUser(), Cursor: cursor, Limit: uint32(size - len(resp.GetFiles())),
		})
		if err != nil {
			return nil, err
		}
		for _, st := range reply.GetFiles() {
			resp.Files = append(resp.Files, fileInfo(st))
			bytes += len(st.GetName()) + len(st.GetLinkTarget()) + 64
		}
		if reply.GetEnd() {
			return resp, nil
		}
		// A supervisor that returns nothing and does not advance would be queried
		// forever.
		stuck := reply.GetCursor() == cursor
		cursor = reply.GetCursor()
		if stuck || len(resp.GetFiles()) >= size || bytes >= maxFilePageBytes {
			if !stuck {
				resp.NextPageToken = strconv.FormatUint(cursor, 10)
			}
			return resp, nil
		}
	}
}

// MakeDirectory makes a directory.
func (f fileCalls) MakeDirectory(ctx context.Context, req *agboxv1.MakeDirectoryRequest) (*agboxv1.MakeDirectoryResponse, error) {
	_, err := f.file(ctx, req.GetSandboxId(), guest.MakeDirectory, &guestv1.FileRequest{
		Path: []byte(req.GetPath()), Mode: req.Mode, Deep: req.GetParents(), User: req.GetUser(),
	})
	return new(agboxv1.MakeDirectoryResponse), err
}

// Remove removes a file or directory.
func (f fileCalls) Remove(ctx context.Context, req *agboxv1.RemoveFileRequest) (*agboxv1.RemoveFileResponse, error) {
	_, err := f.file(ctx, req.GetSandboxId(), guest.RemoveFile, &guestv1.FileRequest{
		Path: []byte(req.GetPath()), Deep: req.GetRecursive(), User: req.GetUser(),
	})
	return new(agboxv1.RemoveFileResponse), err
}

// Move renames a file or directory.
func (f fileCalls) Move(ctx context.Context, req *agboxv1.MoveFileRequest) (*agboxv1.MoveFileResponse, error) {
	_, err := f.file(ctx, req.GetSandboxId(), guest.MoveFile, &guestv1.FileRequest{
		Path: []byte(req.GetPath()), NewPath: []byte(req.GetNewPath()), NoReplace: req.GetNoReplace(), User: req.GetUser(),
	})
	return new(agboxv1.MoveFileResponse), err
}

// fileInfo converts the description of a file.
func fileInfo(st *guestv1.FileStat) *agboxv1.FileInfo {
	if st == nil {
		return nil
	}
	modified := time.Unix(st.GetModifiedSeconds(), int64(st.GetModifiedNanoseconds()%1e9))
	info := &agboxv1.FileInfo{
		Name: text(st.GetName()), Type: fileType(st.GetMode()), Size: st.GetSize(), Mode: st.GetMode() & 0o7777,
		Uid: st.GetUid(), Gid: st.GetGid(), LinkTarget: text(st.GetLinkTarget()),
		Inode: st.GetInode(), Links: st.GetLinks(), RealPath: text(st.GetRealPath()),
	}
	if ts := timestamppb.New(modified); ts.IsValid() {
		info.Modified = ts
	}
	if !utf8.Valid(st.GetName()) {
		info.RawName = st.GetName()
	}
	return info
}

// text converts a name, which consists of bytes in Linux, to text.
func text(name []byte) string { return strings.ToValidUTF8(string(name), "\uFFFD") }

func fileType(mode uint32) agboxv1.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return agboxv1.FileType_FILE_TYPE_REGULAR
	case unix.S_IFDIR:
		return agboxv1.FileType_FILE_TYPE_DIRECTORY
	case unix.S_IFLNK:
		return agboxv1.FileType_FILE_TYPE_SYMLINK
	case unix.S_IFIFO:
		return agboxv1.FileType_FILE_TYPE_FIFO
	case unix.S_IFSOCK:
		return agboxv1.FileType_FILE_TYPE_SOCKET
	case unix.S_IFCHR, unix.S_IFBLK:
		return agboxv1.FileType_FILE_TYPE_DEVICE
	}
	return agboxv1.FileType_FILE_TYPE_UNSPECIFIED
}

// transfer starts a file transfer.
func (f fileCalls) transfer(ctx context.Context, sandbox string, req *guestv1.TransferRequest) (*guest.Transfer, func(), error) {
	sb, err := f.ledger.FindSandbox(ctx, sandbox)
	if err != nil {
		return nil, nil, err
	}
	return f.files.Transfer(ctx, sb.ID, req)
}

// pull passes every message of a transfer to send.
func (f fileCalls) pull(ctx context.Context, sandbox string, req *guestv1.TransferRequest, begun func(*guestv1.FileStat) error, send func(*guest.Transfer) error) error {
	ctx, cancel := f.life.context(ctx)
	defer cancel()
	t, done, err := f.transfer(ctx, sandbox, req)
	if err != nil {
		return orStopped(ctx, err)
	}
	defer done()
	if err := begun(t.File); err != nil {
		return err
	}
	for {
		switch err := send(t); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return orStopped(ctx, err)
		}
	}
}

// bytes passes all bytes of a transfer to send, which must not keep them after it
// returns.
func (f fileCalls) bytes(ctx context.Context, sandbox string, req *guestv1.TransferRequest, begun func(*guestv1.FileStat) error, send func([]byte) error) error {
	moved := new(process.BulkMeter)
	defer moved.Close()
	return f.pull(ctx, sandbox, req, begun, func(t *guest.Transfer) error {
		chunk, err := t.Next()
		if err != nil {
			return err
		}
		moved.Add(len(chunk))
		return send(chunk)
	})
}

// Read streams a part of a file.
func (f fileCalls) Read(req *agboxv1.ReadFileRequest, stream grpc.ServerStreamingServer[agboxv1.ReadFileResponse]) error {
	return f.bytes(stream.Context(), req.GetSandboxId(), &guestv1.TransferRequest{
		User: req.GetUser(),
		Kind: &guestv1.TransferRequest_Read{Read: &guestv1.ReadTransfer{
			Path: []byte(req.GetPath()), Offset: req.GetOffset(), Length: req.GetLength(),
		}},
	}, func(st *guestv1.FileStat) error {
		return stream.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_File{File: fileInfo(st)}})
	}, func(data []byte) error {
		return stream.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_Data{Data: data}})
	})
}

// CopyOut streams a tree.
func (f fileCalls) CopyOut(req *agboxv1.CopyOutRequest, stream grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
	if done, err := f.copyOutStopped(req, stream); done || err != nil {
		return err
	}
	return f.bytes(stream.Context(), req.GetSandboxId(), &guestv1.TransferRequest{
		User: req.GetUser(),
		Kind: &guestv1.TransferRequest_Out{Out: &guestv1.OutTransfer{
			Path: []byte(req.GetPath()), Name: []byte(req.GetName()), Follow: req.GetFollow(),
		}},
	}, func(*guestv1.FileStat) error { return nil }, func(data []byte) error {
		return stream.Send(&agboxv1.CopyOutResponse{Data: data})
	})
}

// Watch streams changes.
func (f fileCalls) Watch(req *agboxv1.WatchFilesRequest, stream grpc.ServerStreamingServer[agboxv1.WatchFilesResponse]) error {
	return f.pull(stream.Context(), req.GetSandboxId(), &guestv1.TransferRequest{
		User: req.GetUser(),
		Kind: &guestv1.TransferRequest_Watch{Watch: &guestv1.WatchTransfer{
			Path: []byte(req.GetPath()), Recursive: req.GetRecursive(),
		}},
	}, func(*guestv1.FileStat) error {
		return stream.Send(&agboxv1.WatchFilesResponse{Item: &agboxv1.WatchFilesResponse_Watching{Watching: true}})
	}, func(t *guest.Transfer) error {
		batch, err := t.NextChanges()
		if err != nil {
			return err
		}
		return sendChanges(stream, batch)
	})
}

func sendChanges(stream grpc.ServerStreamingServer[agboxv1.WatchFilesResponse], p *guestv1.WatchBatch) error {
	for _, c := range p.GetChanges() {
		err := stream.Send(&agboxv1.WatchFilesResponse{Item: &agboxv1.WatchFilesResponse_Change{Change: &agboxv1.FileChange{
			Kind: agboxv1.FileChangeKind(c.GetKind()), Path: text(c.GetPath()), Directory: c.GetDirectory(), Cookie: c.GetCookie(),
		}}})
		if err != nil {
			return err
		}
	}
	if p.GetOverflow() == "" {
		return nil
	}
	return stream.Send(&agboxv1.WatchFilesResponse{Item: &agboxv1.WatchFilesResponse_Overflow{Overflow: text([]byte(p.GetOverflow()))}})
}

// upload is a message of a call that sends a file or a tree; only the first one has an open.
type upload[Open any] interface {
	GetOpen() *Open
	GetData() []byte
}

// push sends everything that a client sends to a transfer, and finishes it when the
// client has closed its side. If the client breaks off, the transfer stays unfinished.
func push[Open any, Message upload[Open]](ctx context.Context, f fileCalls, sandbox string, req *guestv1.TransferRequest, recv func() (Message, error)) (*guestv1.TransferEnd, error) {
	t, done, err := f.transfer(ctx, sandbox, req)
	if err != nil {
		return nil, err
	}
	defer done()
	moved := new(process.BulkMeter)
	defer moved.Close()
	for {
		m, err := recv()
		switch {
		case m.GetOpen() != nil:
			return nil, invalid("open: only the first message has it.")
		case errors.Is(err, io.EOF):
			return t.Finish()
		case err != nil:
			return nil, err
		}
		if err := t.Push(m.GetData()); err != nil {
			return nil, err
		}
		moved.Add(len(m.GetData()))
	}
}

// Write replaces a file.
func (f fileCalls) Write(stream grpc.ClientStreamingServer[agboxv1.WriteFileRequest, agboxv1.WriteFileResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return invalid("open: the first message says what to write.")
	}
	reply, err := push(stream.Context(), f, open.GetSandboxId(), &guestv1.TransferRequest{
		User: open.GetUser(),
		Kind: &guestv1.TransferRequest_Write{Write: &guestv1.WriteTransfer{
			Path: []byte(open.GetPath()), Mode: open.Mode, Uid: open.Uid, Gid: open.Gid,
			CreateOnly: open.GetCreateOnly(), Parents: open.GetParents(), ExpectedSha256: open.GetExpectedSha256(),
		}},
	}, stream.Recv)
	if err != nil {
		return err
	}
	return stream.SendAndClose(&agboxv1.WriteFileResponse{File: fileInfo(reply.GetFile())})
}

// CopyIn unpacks a tree.
func (f fileCalls) CopyIn(stream grpc.ClientStreamingServer[agboxv1.CopyInRequest, agboxv1.CopyInResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return invalid("open: the first message says where to unpack.")
	}
	reply, err := push(stream.Context(), f, open.GetSandboxId(), &guestv1.TransferRequest{
		User: open.GetUser(),
		Kind: &guestv1.TransferRequest_In{In: &guestv1.InTransfer{
			Path: []byte(open.GetPath()), Only: []byte(open.GetOnly()), NoOwner: open.GetNoOwner(),
			Special: guestv1.Special(open.GetSpecial()),
		}},
	}, stream.Recv)
	if err != nil {
		return err
	}
	return stream.SendAndClose(&agboxv1.CopyInResponse{Files: reply.GetFiles(), Bytes: reply.GetBytes(), Skipped: reply.GetSkipped()})
}

// ListUncovered returns what came into the writable mounts of a sandbox and has no cover.
func (f fileCalls) ListUncovered(ctx context.Context, req *agboxv1.ListUncoveredRequest) (*agboxv1.ListUncoveredResponse, error) {
	sb, err := f.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	found, notSearched, err := f.loop.Uncovered(ctx, sb)
	if err != nil {
		return nil, err
	}
	return &agboxv1.ListUncoveredResponse{Paths: inBytes(found), NotSearched: inBytes(notSearched)}, nil
}

// inBytes is for paths, which need not be valid UTF-8.
func inBytes(paths []string) (all [][]byte) {
	for _, p := range paths {
		all = append(all, []byte(p))
	}
	return all
}

// orAtRest returns err, or one after which clients try again if it means that a sandbox has ended
// under its comparison: the next one reads the archive of the engine.
func (f fileCalls) orAtRest(sandboxID string, err error) error {
	if fault.ReasonOf(err) != agboxv1.ErrorReason_SANDBOX_NOT_READY {
		return err
	}
	if sb, living := f.ledger.Sandbox(sandboxID); !living || !atRest(sb) {
		return err
	}
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE, "The sandbox has ended while its workspace was compared; try again.").Because(err)
}

// atRest reports whether a sandbox does not run.
func atRest(sb ledger.Sandbox) bool {
	return sb.State == agboxv1.SandboxState_SANDBOX_STATE_STOPPED || sb.State == agboxv1.SandboxState_SANDBOX_STATE_FAILED
}

// copyOutStopped streams a part of a repository in the workspace of a sandbox that does not run.
// done is false for all else.
func (f fileCalls) copyOutStopped(req *agboxv1.CopyOutRequest, stream grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) (done bool, err error) {
	ctx, cancel := f.life.context(stream.Context())
	defer cancel()
	sb, err := f.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil || !atRest(sb) {
		return false, err
	}
	r := review.New(f.files, f.paths)
	base, err := r.Open(sb.ID, nil, agboxv1.WorkBase_WORK_BASE_FOLDER, review.Commits{})
	if err != nil {
		return false, nil //nolint:nilerr // nothing was copied in
	}
	defer base.Close()
	below, is := strings.CutPrefix(req.GetPath()+"/", base.GetTarget()+"/")
	if !is || !strings.Contains("/"+below, "/.git/") {
		return false, nil
	}
	ctx, enough := context.WithTimeout(ctx, archiveTimeout)
	defer enough()
	return true, orStopped(ctx, review.Archived(ctx, req.GetPath(), req.GetName(), func(ctx context.Context, path string) (io.ReadCloser, error) {
		return f.loop.Archive(ctx, sb, path)
	}, func(data []byte) error { return stream.Send(&agboxv1.CopyOutResponse{Data: data}) }))
}

// copiedFrom says from where the workspace of a child's sandbox was copied. The parent may have
// another sandbox by now.
func (f fileCalls) copiedFrom(sb ledger.Sandbox) *agboxv1.DerivedSpec {
	from := proto.CloneOf(sb.Spec.GetDerived())
	if parent, known := f.ledger.Agent(from.GetParent()); known {
		from.ParentSandbox = parent.SandboxID
	}
	return from
}

// archiveTimeout bounds the comparison of a sandbox that does not run: the engine holds its
// container as long as somebody reads.
const archiveTimeout = 10 * time.Minute
