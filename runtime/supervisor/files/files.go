// Package files implements the file calls of the supervisor's protocol. Small calls
// are answered over the link; bulk data moves in transfers on separate connections.
//
// It runs inside PID 1 of a container. So memory and threads are bounded whatever
// the number of callers and the size of files, and a panic ends only one call.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/process"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
	"github.com/agbox/agbox/workspace/archive"
)

// Threads is the maximum number of threads that the package blocks in system calls at
// once.
const Threads = 4

const (
	// maxTransfers bounds the concurrent transfers. Each uses up to about 1 MiB.
	maxTransfers = 24
	// maxWatches bounds the concurrent watches among them, because a host has few
	// inotify instances.
	maxWatches = 8
)

// Identity is a user with whose rights files are accessed.
type Identity struct {
	UID, GID int
	Groups   []int
}

// Service implements the calls. All paths are relative to the supervisor's own root.
type Service struct {
	// lookup resolves a user. Its error is a sentence for people.
	lookup func(spec string) (*Identity, error)
	// stopping is done when all transfers must end.
	stopping context.Context
	gate     chan struct{}
	// renameLocks are locks of directories, chosen by inode.
	// Held across I/O: they order the renames of written files to their final names.
	renameLocks [64]sync.Mutex

	// mu guards the fields below.
	mu                 sync.Mutex
	transfers, watches int
}

// New returns the service. Transfers end when ctx is done. lookup resolves a user;
// its error must be a sentence for people.
func New(ctx context.Context, lookup func(spec string) (*Identity, error)) *Service {
	return &Service{lookup: lookup, stopping: ctx, gate: make(chan struct{}, Threads)}
}

// actor returns an actor with the rights of the given user; empty means the
// supervisor's own rights.
func (s *Service) actor(spec string) (*actor, *guestv1.FileError) {
	a := &actor{gate: s.gate}
	if spec == "" {
		return a, nil
	}
	var id *Identity
	err := a.do(func() (err error) {
		id, err = s.lookup(spec)
		return err
	})
	if err != nil {
		return nil, &guestv1.FileError{Kind: guestv1.FileFailure_FILE_FAILURE_USER_NOT_FOUND, Message: cut(err.Error())}
	}
	return a, a.become(id)
}

// do runs a small call.
func (s *Service) do(req *guestv1.FileRequest, what string, fn func(*FileCall) error) *guestv1.FileReply {
	a, fail := s.actor(req.GetUser())
	if fail != nil {
		return &guestv1.FileReply{Error: fail}
	}
	call := &FileCall{FileRequest: req, reply: new(guestv1.FileReply), actor: a}
	path, err := clean(req.GetPath())
	if err == nil {
		call.path = path
		err = fn(call)
	}
	if err != nil {
		return &guestv1.FileReply{Error: explain(what, req.GetPath(), err)}
	}
	return call.reply
}

// FileCall is one small call.
type FileCall struct {
	*guestv1.FileRequest
	path  string
	actor *actor
	reply *guestv1.FileReply
}

func clean(path []byte) (string, error) {
	const longest = 4095
	if len(path) == 0 || path[0] != '/' || len(path) > longest {
		return "", invalid("is not an absolute path of at most %d bytes", longest)
	}
	if slices.Contains(path, 0) {
		return "", invalid("contains a NUL byte")
	}
	return string(path), nil
}

// invalidError has the end of a sentence that begins with the path.
type invalidError struct{ text string }

func (e *invalidError) Error() string { return e.text }

func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

// actor runs file operations with the rights of one user. gate limits how many run
// at once.
type actor struct {
	gate chan struct{}
	// id is nil for the supervisor's own rights.
	id *Identity
}

// become sets the user whose rights the actor uses.
func (a *actor) become(id *Identity) *guestv1.FileError {
	if euid := os.Geteuid(); euid != 0 {
		if id.UID == euid {
			return nil
		}
		return &guestv1.FileError{
			Kind:    guestv1.FileFailure_FILE_FAILURE_PERMISSION,
			Message: fmt.Sprintf("The supervisor runs as user %d and cannot act as user %d.", euid, id.UID),
		}
	}
	if id.UID != 0 || id.GID != 0 {
		a.id = id
	}
	return nil
}

// As runs fn with the rights of a user over files. fn must not wait for anything but the file
// system.
func As(id *Identity, fn func() error) error {
	a := &actor{gate: make(chan struct{}, 1)}
	if no := a.become(id); no != nil {
		return errors.New(no.GetMessage())
	}
	return a.do(fn)
}

// root reports whether the actor has the right to change the owner of files.
func (a *actor) root() bool { return a.id == nil && os.Geteuid() == 0 }

// do runs fn with the user's rights when the gate has a free slot. fn must not wait
// for anything but the file system, and must not call do.
func (a *actor) do(fn func() error) error {
	a.gate <- struct{}{}
	defer func() { <-a.gate }()
	if a.id == nil {
		return fn()
	}
	runtime.LockOSThread()
	before, err := groups()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = a.enter()
	// A thread that could not regain root's rights must not be reused: it stays locked,
	// so the runtime ends it with its goroutine.
	defer func() {
		if leave(before) == nil {
			runtime.UnlockOSThread()
		}
	}()
	if err != nil {
		return err
	}
	return fn()
}

// enter sets the user's rights on this thread only; the functions of package syscall
// would change all threads. The kernel drops the capabilities over files when the
// file system user id changes from 0, and restores them when it changes back.
func (a *actor) enter() error {
	list := make([]uint32, len(a.id.Groups))
	for i, g := range a.id.Groups {
		list[i] = uint32(g)
	}
	if err := setGroups(list); err != nil {
		return err
	}
	if err := setID(unix.SYS_SETFSGID, a.id.GID); err != nil {
		return err
	}
	return setID(unix.SYS_SETFSUID, a.id.UID)
}

func leave(before []uint32) error {
	if err := setID(unix.SYS_SETFSUID, 0); err != nil {
		return err
	}
	if err := setID(unix.SYS_SETFSGID, os.Getegid()); err != nil {
		return err
	}
	return setGroups(before)
}

// setID sets a file system id. The call reports no error, so setID reads the id back.
func setID(call uintptr, id int) error {
	_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0)
	const none = ^uintptr(0) // an invalid id, which changes nothing
	if now, _, _ := unix.RawSyscall(call, none, 0, 0); int(now) != id {
		return unix.EPERM
	}
	return nil
}

func groups() ([]uint32, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_GETGROUPS, 0, 0, 0)
	if errno != 0 || n == 0 {
		return nil, errnoOrNil(errno)
	}
	list := make([]uint32, n)
	n, _, errno = unix.RawSyscall(unix.SYS_GETGROUPS, n, uintptr(unsafe.Pointer(&list[0])), 0)
	if errno != 0 {
		return nil, errno
	}
	return list[:n], nil
}

func setGroups(list []uint32) error {
	if len(list) > 0 {
		_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(list)), uintptr(unsafe.Pointer(&list[0])), 0)
		return errnoOrNil(errno)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
	return errnoOrNil(errno)
}

func errnoOrNil(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

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

// keptError is the error for a file that was changed so often that one of its versions is left
// under a temporary name, because nothing else has it.
type keptError struct{ name string }

func (e *keptError) Error() string { return "a version is kept as " + e.name }

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
	var kept *keptError
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
	case errors.As(err, &kept):
		return &guestv1.FileError{
			Kind:    guestv1.FileFailure_FILE_FAILURE_CHANGED,
			Message: cut(fmt.Sprintf("%s failed: it was changed several times meanwhile; one of its versions is in %s beside it.", subject, kept.name)),
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

// wanted returns an error if the client has cancelled the transfer or the service is
// stopping. Then nothing may be created or replaced any more, because the same client
// may have created something new there since.
func wanted(ctx context.Context, p *rpc.Pipe) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.Gone() {
		return io.ErrClosedPipe
	}
	return nil
}

// metered counts the bytes that are read and written.
type metered struct {
	io.ReadWriter
	moved *process.BulkMeter
}

func (m metered) Read(p []byte) (int, error) {
	n, err := m.ReadWriter.Read(p)
	m.moved.Add(n)
	return n, err
}

func (m metered) Write(p []byte) (int, error) {
	n, err := m.ReadWriter.Write(p)
	m.moved.Add(n)
	return n, err
}
