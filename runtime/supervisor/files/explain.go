package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/workspace/archive"
)

const (
	// longest is how much of a name a message shows, in bytes.
	longest = 512
	// maxMessage is the maximum length of a message, in bytes.
	maxMessage = 2048
)

func show(path []byte) string {
	if len(path) > longest {
		return strconv.Quote(string(path[:longest])) + "..."
	}
	return strconv.Quote(string(path))
}

// cut returns at most maxMessage bytes of s, which are UTF-8: a message must be.
func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "") }

var (
	errChanged    = errors.New("not the expected file")
	errNotRegular = errors.New("not a regular file")
	errBusy       = errors.New("too many at once")
	errTooDeep    = errors.New("too deep")
)

// reason maps an error of the file system to a kind and to the end of a message.
type reason struct {
	err  error
	kind guestv1.FileFailure
	text string
}

var reasons = []reason{
	{unix.ENOENT, guestv1.FileFailure_FILE_FAILURE_NOT_FOUND, "it does not exist in the sandbox"},
	{unix.EEXIST, guestv1.FileFailure_FILE_FAILURE_EXISTS, "it exists already"},
	{unix.ENOTEMPTY, guestv1.FileFailure_FILE_FAILURE_NOT_EMPTY, "the directory is not empty; remove it recursively to remove its content too"},
	{unix.ENOTDIR, guestv1.FileFailure_FILE_FAILURE_NOT_DIRECTORY, "it, or a part of its path, is not a directory"},
	{unix.EISDIR, guestv1.FileFailure_FILE_FAILURE_IS_DIRECTORY, "it is a directory"},
	{errChanged, guestv1.FileFailure_FILE_FAILURE_CHANGED, "it is not the file that was to be replaced: it was changed or removed"},
	{errNotRegular, guestv1.FileFailure_FILE_FAILURE_NOT_REGULAR, "it is not a regular file"},
	{unix.EACCES, guestv1.FileFailure_FILE_FAILURE_PERMISSION, "the user has no permission for it; omit the user to do it as root, or change the permissions"},
	{unix.EPERM, guestv1.FileFailure_FILE_FAILURE_PERMISSION, "the kernel does not allow it"},
	{unix.EROFS, guestv1.FileFailure_FILE_FAILURE_PERMISSION, "the file system is read-only"},
	{unix.ENOSPC, guestv1.FileFailure_FILE_FAILURE_FULL, "the file system is full; remove something first"},
	{unix.EDQUOT, guestv1.FileFailure_FILE_FAILURE_FULL, "a quota is reached; remove something first"},
	{unix.ELOOP, guestv1.FileFailure_FILE_FAILURE_OTHER, "its path has too many symbolic links, or leads through a link of /proc to an open file"},
	{unix.ENAMETOOLONG, guestv1.FileFailure_FILE_FAILURE_INVALID, "its name is too long, or it is too deep"},
	{unix.EXDEV, guestv1.FileFailure_FILE_FAILURE_OTHER, "the new path is on another file system; copy it and remove the old one"},
	{unix.EBUSY, guestv1.FileFailure_FILE_FAILURE_OTHER, "it is in use, for example as a mount point"},
	{unix.EINVAL, guestv1.FileFailure_FILE_FAILURE_INVALID, "the file system refuses this; for example, a directory cannot be moved into itself"},
	{unix.EMFILE, guestv1.FileFailure_FILE_FAILURE_BUSY, "too many files are open, or too many directories are watched on this host; try again later"},
	{unix.ENFILE, guestv1.FileFailure_FILE_FAILURE_BUSY, "too many files are open on this host; try again later"},
	{unix.ENOMEM, guestv1.FileFailure_FILE_FAILURE_BUSY, "the sandbox is out of memory; end some of its processes"},
	{errBusy, guestv1.FileFailure_FILE_FAILURE_BUSY, "too many transfers of this sandbox are in progress; try again later"},
	{errTooDeep, guestv1.FileFailure_FILE_FAILURE_INVALID, "it is too deep"},
	{context.Canceled, guestv1.FileFailure_FILE_FAILURE_BUSY, "the sandbox is stopping"},
	{io.ErrClosedPipe, guestv1.FileFailure_FILE_FAILURE_BUSY, "the transfer is over"},
}

// explain returns the error of a call with the message "what path failed: reason."
func explain(what string, path []byte, err error) *guestv1.FileError {
	subject := what + " " + show(path)
	var bad *invalidError
	var refused *archive.Refusal
	var one *archive.Failure
	switch {
	case errors.As(err, &bad):
		return &guestv1.FileError{
			Kind:    guestv1.FileFailure_FILE_FAILURE_INVALID,
			Message: cut(fmt.Sprintf("The path %s %s.", show(path), bad.text)),
		}
	case errors.As(err, &refused):
		return &guestv1.FileError{
			Kind:    guestv1.FileFailure_FILE_FAILURE_REFUSED,
			Message: cut(fmt.Sprintf("Nothing more was unpacked in %s: %s.", show(path), refused)),
		}
	case errors.As(err, &one):
		subject = fmt.Sprintf("%s %s failed: could not %s %s", what, show(path), one.Op, show([]byte(one.Name)))
		err = one.Err
	default:
		subject += " failed"
	}
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return &guestv1.FileError{Kind: r.kind, Message: cut(fmt.Sprintf("%s: %s.", subject, r.text))}
		}
	}
	return &guestv1.FileError{Message: cut(fmt.Sprintf("%s: %v.", subject, err))}
}
