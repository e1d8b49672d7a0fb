package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/user"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
	"github.com/agbox/agbox/runtime/supervisor/files"
)

// defaultPath is searched if neither the container nor the request has PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// markerVariable is in the environment of every exec and has its id. A kill uses it to
// find processes that left the exec's session.
const markerVariable = "AGBOX_EXEC_ID"

// plan has everything that is needed to start a process.
type plan struct {
	path       string
	argv, env  []string
	dir        string
	credential *syscall.Credential
	uid        int
	// who names the user in messages.
	who string
}

// plan resolves a request with the container's files. access is what an incarnation of an
// agent gets, or nil.
func (s *Supervisor) plan(req *guestv1.StartRequest, access *agentsocket.Access) (*plan, *startError) {
	who, fail := s.lookupUser(req.GetUser())
	if fail != nil {
		return nil, fail
	}
	dir := req.GetCwd()
	if dir == "" {
		dir = "/"
	}
	if fail := checkDir(dir); fail != nil {
		return nil, fail
	}
	env := access.Extend(buildEnv(access.Inherit(s.settings.Load().env), who, req.GetEnv(), req.GetExecId()))
	if req.GetTty() && !slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, "TERM=") }) {
		env = append(env, "TERM="+defaultTerm)
	}
	path, fail := findProgram(req.GetCommand()[0], variable(env, "PATH"), dir, who)
	if fail != nil {
		return nil, fail
	}
	return &plan{
		path:       path,
		argv:       req.GetCommand(),
		env:        env,
		dir:        dir,
		credential: who.credential(),
		uid:        who.uid,
		who:        who.String(),
	}, nil
}

func checkDir(dir string) *startError {
	const notFound = guestv1.StartFailure_START_FAILURE_DIRECTORY_NOT_FOUND
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failure(notFound, "The working directory %s does not exist in the sandbox: make it first or choose another one.", show(dir))
	case err != nil:
		return failure(notFound, "The working directory %s cannot be used (%v): choose another one.", show(dir), err)
	case !st.IsDir():
		return failure(notFound, "The working directory %s is a file: choose a directory.", show(dir))
	}
	return nil
}

// findProgram resolves the name of a program: a name with a slash is a path, any other
// one is the first match in PATH that the user may execute.
func findProgram(name, searchPath, dir string, who *identity) (string, *startError) {
	const (
		notFound      = guestv1.StartFailure_START_FAILURE_COMMAND_NOT_FOUND
		notExecutable = guestv1.StartFailure_START_FAILURE_COMMAND_NOT_EXECUTABLE
	)
	if strings.Contains(name, "/") {
		path := beneath(dir, name)
		switch st, err := os.Stat(path); {
		case err != nil:
			return "", failure(notFound, "The command %s does not exist in the sandbox: check the path, or install it in the image.", show(name))
		case st.IsDir():
			return "", failure(notExecutable, "The command %s is a directory: name the program in it.", show(name))
		case !who.mayExecute(st):
			return "", failure(notExecutable, "The user %s may not execute %s: make it executable with chmod +x, or run it through its interpreter.", who, show(name))
		}
		return path, nil
	}
	denied := ""
	for _, d := range filepath.SplitList(searchPath) {
		path := beneath(dir, filepath.Join(d, name))
		st, err := os.Stat(path)
		if err != nil || st.IsDir() {
			continue
		}
		if who.mayExecute(st) {
			return path, nil
		}
		denied = path
	}
	if denied != "" {
		return "", failure(notExecutable, "The user %s may not execute %s: make it executable with chmod +x, or run it through its interpreter.", who, show(denied))
	}
	return "", failure(notFound, "The command %s was not found in the PATH of the sandbox (%s): install it in the image or give its full path.", show(name), show(searchPath))
}

// beneath makes a path absolute, relative to dir. It does not clean the path: "a/../b"
// and "b" differ if a is a symbolic link.
func beneath(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return strings.TrimSuffix(dir, "/") + "/" + path
}

// buildEnv merges the environments: that of the request overrides the user's, which
// overrides the container's. The marker comes last, and a request cannot set it.
func buildEnv(container []string, who *identity, request []string, execID string) []string {
	env := make([]string, 0, len(container)+len(request)+4)
	at := make(map[string]int, cap(env))
	set := func(entry string) {
		key, _, _ := strings.Cut(entry, "=")
		if i, ok := at[key]; ok {
			env[i] = entry
			return
		}
		at[key] = len(env)
		env = append(env, entry)
	}
	set("PATH=" + defaultPath)
	for _, entry := range container {
		set(entry)
	}
	set("HOME=" + who.home)
	if who.name != "" {
		set("USER=" + who.name)
	}
	for _, entry := range request {
		set(entry)
	}
	set(markerVariable + "=" + execID)
	return env
}

// startError says why the process of a command did not start.
type startError struct {
	kind guestv1.StartFailure
	// message is a sentence that names the problem and says what to do.
	message string
	// cause is set if the supervisor itself refused the start.
	cause guestv1.EndCause
}

func failure(kind guestv1.StartFailure, format string, args ...any) *startError {
	return &startError{kind: kind, message: fmt.Sprintf(format, args...)}
}

func other(format string, args ...any) *startError {
	return failure(guestv1.StartFailure_START_FAILURE_OTHER, format, args...)
}

// unrecorded is the error of a start that the host's disk has prevented, not the command.
func unrecorded(format string, args ...any) *startError {
	return failure(guestv1.StartFailure_START_FAILURE_NOT_RECORDED, format, args...)
}

// tooLate is the error of a start after the supervisor began to stop.
func tooLate() *startError {
	fail := other("The sandbox was stopped before the command was started.")
	fail.cause = guestv1.EndCause_END_CAUSE_STOP
	return fail
}

// exitCode returns the exit code that a shell would return: 127 if there is no such
// command, 126 if it cannot be executed, and that of SIGTERM if a stop prevented the
// start.
func (f *startError) exitCode() int32 {
	switch {
	case f.cause == guestv1.EndCause_END_CAUSE_STOP:
		return signalBase + int32(syscall.SIGTERM)
	case f.kind == guestv1.StartFailure_START_FAILURE_COMMAND_NOT_FOUND:
		return 127
	}
	return 126
}

// signalBase is added to a signal's number to make an exit code, as shells do.
const signalBase = 128

// explain turns an error of fork or exec into a startError.
func (p *plan) explain(err error) *startError {
	if errors.Is(err, errEnding) {
		return tooLate()
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return other("The command %s could not be started: %v.", show(p.path), err)
	}
	const notExecutable = guestv1.StartFailure_START_FAILURE_COMMAND_NOT_EXECUTABLE
	switch errno {
	case syscall.EAGAIN:
		return other("The command %s could not be started because the sandbox or its machine is at its process limit: end some of its processes, or stop and start it, and try again. If \"agbox doctor\" shows that the machine is full, raise its limit.", show(p.path))
	case syscall.ENOMEM:
		return other("The command %s could not be started because the sandbox is out of memory: end some of its processes or give it more memory.", show(p.path))
	case syscall.E2BIG:
		return other("The command line and environment of %s are longer than Linux accepts: pass long data in a file instead.", show(p.path))
	case syscall.ENOENT:
		return failure(notExecutable, "The file %s exists but what it needs to run does not: install the interpreter named in its first line, or the dynamic loader it was linked with.", show(p.path))
	case syscall.ENOEXEC:
		return failure(notExecutable, "The file %s is no program for this machine: give a script a first line like #!/bin/sh, or use a binary built for this architecture.", show(p.path))
	case syscall.ETXTBSY:
		return failure(notExecutable, "The file %s is being written: try again when it is closed.", show(p.path))
	case syscall.EACCES:
		return failure(notExecutable, "The user %s may not execute %s in directory %s: check the permissions of both, and that the file system is not mounted noexec.", p.who, show(p.path), show(p.dir))
	case syscall.EPERM:
		return other("The kernel did not allow %s to be started as user %s: the container lacks the capability to change users, or a security policy forbids it.", show(p.path), p.who)
	}
	return failure(notExecutable, "The command %s could not be started: %v.", show(p.path), errno)
}

// longestShown is the maximum number of bytes of one name in a message.
const longestShown = 256

// show quotes a name for a message and cuts a long one.
func show(s string) string {
	if len(s) > longestShown {
		return strconv.Quote(s[:longestShown]) + "..."
	}
	return strconv.Quote(s)
}

// cut returns at most n bytes of s.
func cut(s string, n int) string { return s[:min(len(s), n)] }

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

// defaultTerm is the value of TERM if neither container nor request sets it.
const defaultTerm = "xterm"

// fileUser resolves a user. The error is a sentence for people.
func (s *Supervisor) fileUser(spec string) (*files.Identity, error) {
	who, fail := s.lookupUser(spec)
	if fail != nil {
		return nil, errors.New(fail.message)
	}
	return &files.Identity{UID: who.uid, GID: who.gid, Groups: who.groups}, nil
}

// as runs fn with the rights of a user over files.
func (s *Supervisor) as(spec string, fn func() error) (err error) {
	s.files.do(func() {
		var id *files.Identity
		if id, err = s.fileUser(spec); err == nil {
			err = files.As(id, fn)
		}
	})
	return err
}
