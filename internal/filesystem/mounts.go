// This file identifies the files that a container mounts from the host, and compares
// them with what is mounted. The engine mounts by name, so the file behind the name may not
// be the one that the daemon checked.

package filesystem

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// FileID identifies a file. The zero value stands for no file.
type FileID struct {
	Device, Inode uint64
	// Type is the type in the bits of st_mode.
	Type uint32
}

// Mount is a file of the host as the daemon checked it, and where it is mounted.
type Mount struct {
	Target string
	File   FileID
}

// MountProblem says which mount is not as the daemon wrote it.
type MountProblem struct {
	// Index is that of the mount in BootConfig.mounts. The last one of a range of exit codes
	// stands for all after it.
	Index int
	// Unseen is true if the mount could not be examined, and false if it is another file.
	Unseen bool
}

// Exit codes of a supervisor that found a Problem. They begin above those of a Go program
// and end below those of a shell. Nobody but the first process decides about its exit code.
const (
	firstCode = 10
	// Span is the number of mounts that have an exit code of their own.
	Span = 55
)

// ExitCode returns the exit code that stands for p, from 10 to 119.
func (p MountProblem) ExitCode() int {
	code := firstCode + min(p.Index, Span-1)
	if p.Unseen {
		code += Span
	}
	return code
}

// MountProblemOf returns the problem that an exit code stands for.
func MountProblemOf(code int) (p MountProblem, ok bool) {
	if code < firstCode || code >= firstCode+2*Span {
		return p, false
	}
	code -= firstCode
	return MountProblem{Index: code % Span, Unseen: code >= Span}, true
}

// IDOf returns the identity of an open file.
func IDOf(fd uintptr) (FileID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return FileID{}, err
	}
	return identityOf(&st), nil
}

// IDOfPath returns the identity of the file at a path.
func IDOfPath(path string) (FileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return FileID{}, err
	}
	return identityOf(&st), nil
}

func identityOf(st *unix.Stat_t) FileID {
	return FileID{Device: st.Dev, Inode: st.Ino, Type: st.Mode & unix.S_IFMT}
}

// CompareMounts returns the first mount that is not mounted here as the daemon wrote it; nil if
// there is none. link is the folder of the supervisor's socket, and linkID what it is on the
// host. If its numbers are other ones here, nothing can be compared.
func CompareMounts(mounts []Mount, link string, linkID FileID) *MountProblem {
	if len(mounts) == 0 {
		return nil
	}
	if seen, _, err := lookMount(link, false); err != nil || !sameFile(seen, linkID) {
		return nil
	}
	for i, m := range mounts {
		seen, mounted, err := lookMount(m.Target, !nestedMount(mounts, m.Target))
		switch {
		case errors.Is(err, unix.EACCES):
			return &MountProblem{Index: i, Unseen: true}
		case err != nil || !mounted || !sameFile(seen, m.File):
			return &MountProblem{Index: i}
		}
	}
	return nil
}

// nestedMount reports whether a target is inside another mount. Somebody else may change what
// is there, so a link in place of the target is not followed. Elsewhere a link is part of
// the image, and the engine has followed it.
func nestedMount(mounts []Mount, target string) bool {
	for _, m := range mounts {
		if strings.HasPrefix(target, strings.TrimSuffix(m.Target, "/")+"/") {
			return true
		}
	}
	return false
}

// lookMount returns the identity of a file, and whether something is mounted there. A kernel
// before 5.8 does not know the latter, and true is returned.
func lookMount(path string, follow bool) (id FileID, mounted bool, err error) {
	flags := unix.AT_NO_AUTOMOUNT
	if !follow {
		flags |= unix.AT_SYMLINK_NOFOLLOW
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_TYPE|unix.STATX_INO, &st); err != nil {
		return FileID{}, false, err
	}
	id = FileID{Device: unix.Mkdev(st.Dev_major, st.Dev_minor), Inode: st.Ino, Type: uint32(st.Mode) & unix.S_IFMT}
	mounted = st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	return id, mounted, nil
}

func sameFile(seen, want FileID) bool { return want != FileID{} && seen == want }

// Rights are those of a mode's last digit: 4 to read, 2 to write, 1 to execute or search.
type Rights uint16

// The rights that agbox gives.
const (
	MayRead  Rights = 4
	MayWrite Rights = 2
	MayUse   Rights = 1
)

// Grant gives a user rights on a file or folder of another user by a POSIX access control
// list. The owner may do that without being root. The owner keeps its own. The group and
// all others lose theirs.
func Grant(path string, uid int, rights Rights) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	return set(path, "system.posix_acl_access", Rights(info.Mode().Perm()>>6), uid, rights)
}

// GrantNew gives a user rights on what others will make in a folder. Who makes a file with
// a mode that gives less to the group gives as little to the user.
func GrantNew(folder string, uid int, rights Rights) error {
	return set(folder, "system.posix_acl_default", MayRead|MayWrite|MayUse, uid, rights)
}

func set(path, attribute string, owner Rights, uid int, rights Rights) error {
	if err := unix.Lsetxattr(path, attribute, encode(owner, uid, rights), 0); err != nil {
		return &os.PathError{Op: "set the access control list of", Path: path, Err: err}
	}
	return nil
}

// encode returns a list in the form of linux/posix_acl_xattr.h: a version, then entries of
// tag, rights and id, in the order of their tags.
func encode(owner Rights, uid int, rights Rights) []byte {
	const (
		version                     = 2
		tagOwner, tagUser, tagGroup = 0x01, 0x02, 0x04
		tagMask, tagOther           = 0x10, 0x20
		noID                        = math.MaxUint32
	)
	list := binary.LittleEndian.AppendUint32(nil, version)
	for _, entry := range []struct {
		tag    uint16
		rights Rights
		id     uint32
	}{
		{tagOwner, owner, noID}, {tagUser, rights, uint32(uid)}, {tagGroup, 0, noID}, {tagMask, rights, noID}, {tagOther, 0, noID},
	} {
		list = binary.LittleEndian.AppendUint16(list, entry.tag)
		list = binary.LittleEndian.AppendUint16(list, uint16(entry.rights))
		list = binary.LittleEndian.AppendUint32(list, entry.id)
	}
	return list
}
