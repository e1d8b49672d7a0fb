package client

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/process"
)

// othersMayWrite are the permission bits that let other users change a folder.
const othersMayWrite = 0o022

// checkFolder returns an error if the folder of a socket, or a symbolic link in its place,
// belongs to none of the users. Somebody else may have made it before the daemon did, for
// example in the temporary directory. A folder that is missing, or that this user cannot
// see, is left to the dial.
func checkFolder(socket string, by users) error {
	if strings.HasPrefix(socket, "@") { // a name without a file
		return nil
	}
	folder := filepath.Dir(socket)
	for _, stat := range []func(string, *unix.Stat_t) error{unix.Lstat, unix.Stat} {
		var st unix.Stat_t
		if stat(folder, &st) == nil && !by.include(st.Uid) {
			return untrusted("The folder %s, where the daemon's socket should be, belongs to another user (uid %d).", folder, st.Uid)
		}
	}
	return nil
}

// checkListener returns an error unless the process that listens behind conn belongs to
// one of the users, and nobody else can replace its socket.
func checkListener(conn net.Conn, socket string, by users) error {
	_, uid, err := process.PeerUser(conn)
	if err != nil {
		return untrusted("The user of the process that listens on %s cannot be determined (%v).", socket, err)
	}
	if !by.include(uint32(uid)) {
		return untrusted("The process that listens on %s belongs to another user (uid %d).", socket, uid)
	}
	if strings.HasPrefix(socket, "@") {
		return nil
	}
	folder := filepath.Dir(socket)
	var in, at unix.Stat_t
	if err := unix.Stat(folder, &in); err != nil {
		return err // a daemon that was ending has removed it
	}
	if in.Mode&othersMayWrite == 0 {
		return nil
	}
	if err := unix.Lstat(socket, &at); err != nil {
		return err
	}
	// In a folder with the sticky bit, such as /tmp, only its owner can replace a file.
	if in.Mode&unix.S_ISVTX == 0 || !by.include(at.Uid) {
		return untrusted("Other users may write to %s, the folder of the daemon's socket. Make it private with `chmod go-w %s`.", folder, folder)
	}
	return nil
}

// users are the ids of the users whose daemon this process uses.
type users []uint32

// ownUsers are root and the user of this process.
func ownUsers() users { return users{0, uint32(os.Getuid())} }

func (u users) include(uid uint32) bool { return slices.Contains(u, uid) }

func untrusted(format string, args ...any) *Error {
	return &Error{Code: codes.PermissionDenied, cause: ErrDaemonUnreachable, Message: fmt.Sprintf(format, args...) +
		" Nothing was sent. Run agbox as the user that runs agboxd, or set XDG_RUNTIME_DIR or AGBOX_HOME to a folder of your own."}
}
