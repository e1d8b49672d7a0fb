package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/user"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
)

// maxUserFile is the maximum number of bytes read from a passwd or group file.
const maxUserFile = 4 << 20

// identity is the user that a process runs as.
type identity struct {
	uid, gid int
	groups   []int
	home     string
	// name is empty for a number without an entry in passwd.
	name string
}

// String names the user in messages.
func (id *identity) String() string {
	if id.name != "" {
		return id.name
	}
	return strconv.Itoa(id.uid)
}

// lookupUser resolves user, uid, user:group or uid:gid with the files of the container.
// Numbers need no files. An empty spec means root.
func (s *Supervisor) lookupUser(spec string) (*identity, *startError) {
	const notFound = guestv1.StartFailure_START_FAILURE_USER_NOT_FOUND
	passwd, err := readUserFile(s.cfg.Passwd)
	if err != nil {
		return nil, failure(notFound, "The user %s cannot be looked up: %v.", show(spec), err)
	}
	group, err := readUserFile(s.cfg.Group)
	if err != nil {
		return nil, failure(notFound, "The group of %s cannot be looked up: %v.", show(spec), err)
	}
	found, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, bytes.NewReader(passwd), bytes.NewReader(group))
	switch {
	case errors.Is(err, user.ErrNoGroupEntries):
		return nil, failure(notFound, "The group of %s is not in %s of the sandbox: add it to the image or give a number.", show(spec), s.cfg.Group)
	case err != nil:
		return nil, failure(notFound, "The user %s is not in %s of the sandbox: add it to the image or give a number.", show(spec), s.cfg.Passwd)
	}
	id := &identity{uid: found.Uid, gid: found.Gid, groups: found.Sgids, home: found.Home}
	if id.home == "" {
		id.home = "/"
	}
	id.name = userName(spec, found.Uid, passwd)
	return id, nil
}

// userName returns the name in spec, or the name of its number in passwd.
func userName(spec string, uid int, passwd []byte) string {
	name, _, _ := strings.Cut(spec, ":")
	if _, err := strconv.Atoi(name); err != nil && name != "" {
		return name
	}
	entries, err := user.ParsePasswdFilter(bytes.NewReader(passwd), func(u user.User) bool { return u.Uid == uid })
	if err != nil || len(entries) == 0 {
		return ""
	}
	return entries[0].Name
}

// readUserFile reads a file that anybody in the container may have replaced. It does not
// block on a FIFO and reads a bounded number of bytes. A missing file is not an error.
func readUserFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file; restore it from the image", path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxUserFile+1))
	if err == nil && len(raw) > maxUserFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxUserFile)
	}
	return raw, err
}

// credential returns nil if the process keeps the user of the supervisor. An unprivileged
// supervisor cannot set another one.
func (id *identity) credential() *syscall.Credential {
	if euid := os.Geteuid(); euid != 0 && id.uid == euid && id.gid == os.Getegid() {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(id.uid), Gid: uint32(id.gid)}
	for _, g := range id.groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

// mayExecute reports whether the mode of a file lets the user execute it. The kernel
// decides: access control lists may say otherwise.
func (id *identity) mayExecute(st fs.FileInfo) bool {
	mode := st.Mode()
	if !mode.IsRegular() {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case id.uid == 0 || !ok:
		return mode&0o111 != 0
	case int(sys.Uid) == id.uid:
		return mode&0o100 != 0
	case int(sys.Gid) == id.gid || slices.Contains(id.groups, int(sys.Gid)):
		return mode&0o010 != 0
	}
	return mode&0o001 != 0
}
