package server

import (
	"context"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
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
