package files

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
)

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
