package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
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
	env := access.Extend(buildEnv(access.Inherit(s.cfg.Env), who, req.GetEnv(), req.GetExecId()))
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

// variable returns the value of a variable.
func variable(env []string, key string) string {
	for _, entry := range env {
		if k, v, ok := strings.Cut(entry, "="); ok && k == key {
			return v
		}
	}
	return ""
}
