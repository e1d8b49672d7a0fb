package guest

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// FileOp is a file operation that fits into one small call over the link.
type FileOp int

// The file operations.
const (
	StatFile FileOp = iota
	ListFiles
	MakeDirectory
	RemoveFile
	MoveFile
)

// File performs a file operation in the sandbox. Besides the errors of Conn it
// returns those of the container's file system, each with a published reason.
func (c *Conn) File(ctx context.Context, op FileOp, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	client := guestv1.NewFilesClient(c.rpc)
	call := map[FileOp]func(context.Context, *guestv1.FileRequest) (*guestv1.FileReply, error){
		StatFile: client.Stat, ListFiles: client.List, MakeDirectory: client.MakeDirectory,
		RemoveFile: client.Remove, MoveFile: client.Move,
	}[op]
	reply, err := call(ctx, req)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	if reply.GetError() != nil {
		return nil, fileError(reply.GetError())
	}
	if op == StatFile && len(reply.GetFiles()) != 1 {
		return nil, c.violation("it did not describe exactly one file")
	}
	return reply, nil
}

// RemoveTree calls RemoveFile on a separate connection. ttrpc cannot cancel a call,
// so only closing its connection stops the supervisor. Without that, the removal
// would also remove files created after ctx was cancelled.
func RemoveTree(ctx context.Context, linkDir string, check Check, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	c, err := Dial(ctx, linkDir, check)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	return c.File(ctx, RemoveFile, req)
}

type fileClass struct {
	class  error
	reason agboxv1.ErrorReason
}

var fileClasses = map[guestv1.FileFailure]fileClass{
	guestv1.FileFailure_FILE_FAILURE_NOT_FOUND:      {errdefs.ErrNotFound, agboxv1.ErrorReason_FILE_NOT_FOUND},
	guestv1.FileFailure_FILE_FAILURE_EXISTS:         {errdefs.ErrAlreadyExists, agboxv1.ErrorReason_FILE_EXISTS},
	guestv1.FileFailure_FILE_FAILURE_NOT_DIRECTORY:  {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_NOT_A_DIRECTORY},
	guestv1.FileFailure_FILE_FAILURE_IS_DIRECTORY:   {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IS_A_DIRECTORY},
	guestv1.FileFailure_FILE_FAILURE_NOT_EMPTY:      {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_DIRECTORY_NOT_EMPTY},
	guestv1.FileFailure_FILE_FAILURE_PERMISSION:     {errdefs.ErrPermissionDenied, agboxv1.ErrorReason_FILE_PERMISSION},
	guestv1.FileFailure_FILE_FAILURE_NOT_REGULAR:    {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_FILE_NOT_REGULAR},
	guestv1.FileFailure_FILE_FAILURE_FULL:           {errdefs.ErrResourceExhausted, agboxv1.ErrorReason_FILE_SYSTEM_FULL},
	guestv1.FileFailure_FILE_FAILURE_REFUSED:        {errdefs.ErrInvalidArgument, agboxv1.ErrorReason_ARCHIVE_REFUSED},
	guestv1.FileFailure_FILE_FAILURE_USER_NOT_FOUND: {errdefs.ErrInvalidArgument, agboxv1.ErrorReason_USER_NOT_FOUND},
	guestv1.FileFailure_FILE_FAILURE_BUSY:           {errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED},
	guestv1.FileFailure_FILE_FAILURE_CHANGED:        {errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_FILE_CHANGED},
	guestv1.FileFailure_FILE_FAILURE_INVALID:        {errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST},
}

// fileError turns the supervisor's error about a file into a fault. The message is
// untrusted, so it is bounded and made valid UTF-8.
func fileError(e *guestv1.FileError) error {
	to, ok := fileClasses[e.GetKind()]
	if !ok {
		to = fileClass{errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_FILE_FAILED}
	}
	const longest = 2048
	text := e.GetMessage()
	return fault.New(to.class, to.reason, "%s", strings.ToValidUTF8(text[:min(len(text), longest)], "\uFFFD"))
}
