// This file gives a user rights on files of another user, by POSIX access control lists.
// The owner of a file may do that, without being root.

package filesystem

import (
	"encoding/binary"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Rights are those of a mode's last digit: 4 to read, 2 to write, 1 to execute or search.
type Rights uint16

// The rights that agbox gives.
const (
	MayRead  Rights = 4
	MayWrite Rights = 2
	MayUse   Rights = 1
)

// Grant gives a user rights on a file or folder. The owner keeps its own. The group and
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
