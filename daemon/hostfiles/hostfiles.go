// Package hostfiles checks what a sandbox takes from the host: the sources of mounts,
// copies and the workspace. It refuses what is missing or dangerous, also through links
// and other names, and packs copies.
//
// A source is checked when the sandbox is requested and again right before its container
// is made. The engine gets the path that was checked, with all symbolic links resolved.
// Somebody who can change folders on that path between the last check and the mount can
// still replace the source. That needs the rights of the daemon's own user, or a path
// through a folder that others can write to.
package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/spec"
)

// Checker knows which paths of the host are not for sandboxes.
type Checker struct {
	// Own are agbox's own folders.
	Own []string
	// Engine is the path of the engine's socket, or empty.
	Engine string
	// Home is the caller's home, or empty if unknown.
	Home string
}

// EngineSocket returns the path of the socket in an engine's address, or "" if it has
// none.
func EngineSocket(address string) string {
	if address == "" {
		address = "unix:///var/run/docker.sock"
	}
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok {
		return ""
	}
	return path
}

// Problem is a source that cannot be used.
type Problem struct {
	// Path is the path of the field in the spec: names and indexes, outermost first.
	Path []any
	Err  *fault.Error
}

// Spec checks all sources of a spec and returns all problems.
func (c Checker) Spec(s *agboxv1.CreateSpec) []Problem {
	var all []Problem
	tell := func(err error, path ...any) {
		if f := fault.Of(err); f != nil {
			all = append(all, Problem{path, f})
		}
	}
	force := s.GetSecurity().GetAllowDangerousMounts()
	for i, m := range s.GetMounts() {
		_, err := c.Bind(m.GetSource(), force)
		tell(err, "mounts", i, "source")
	}
	for i, copied := range s.GetCopies() {
		tell(c.Copy(copied.GetSource()), "copies", i, "source")
	}
	if w := s.GetWorkspace(); w != nil {
		tell(c.Workspace(w, force), "workspace", "source")
	}
	return all
}

// Workspace checks the source of a workspace. Paths that must not be mounted must not be
// copied either: a workspace is a project, not a folder with keys.
func (c Checker) Workspace(w *agboxv1.WorkspaceSpec, force bool) error {
	doing := "Copying in"
	if w.GetMount() {
		doing = "Mounting"
	}
	resolved, err := c.allow(doing, w.GetSource(), force)
	if err != nil {
		return err
	}
	if st, err := os.Stat(resolved); err == nil && !st.IsDir() {
		return refusal("The workspace %s is a file: name the folder of the project.", w.GetSource())
	}
	if w.GetMount() {
		return nil
	}
	return c.Copy(w.GetSource())
}

// Bind checks a source to mount and returns the path to mount: the source with all
// symbolic links resolved. force permits a dangerous source, but not a missing one.
func (c Checker) Bind(source string, force bool) (resolved string, err error) {
	return c.allow("Mounting", source, force)
}

// allow is Bind for another action. doing is a word such as "Mounting".
func (c Checker) allow(doing, source string, force bool) (resolved string, err error) {
	clean := filepath.Clean(source)
	refused := func(why string) error {
		return refusal("%s %s is refused, because %s: name something narrower, or set security.allow_dangerous_mounts if you mean it.", doing, clean, why)
	}
	if why := c.known(clean); why != "" && !force {
		return "", refused(why)
	}
	resolved, err = resolveLinks(clean)
	if err != nil {
		return "", err
	}
	st, err := os.Lstat(resolved)
	if err != nil {
		return "", unusable(clean, err)
	}
	if force {
		return resolved, nil
	}
	if why := c.danger(resolved, st); why != "" {
		if resolved != clean {
			why = fmt.Sprintf("it leads by a symbolic link to %s, and %s", resolved, why)
		}
		return "", refused(why)
	}
	if st.Mode()&os.ModeDevice != 0 {
		return "", refusal("%s is a device, and devices are not mounted: name it in security.devices.", clean)
	}
	return resolved, nil
}

// Danger says why a source must not be mounted without force, as the end of a sentence.
// It returns "" if nothing is known against it, or if it does not exist.
func (c Checker) Danger(source string) string {
	clean := filepath.Clean(source)
	if why := c.known(clean); why != "" {
		return why
	}
	resolved, err := resolveLinks(clean)
	if err != nil {
		return ""
	}
	st, err := os.Lstat(resolved)
	if err != nil {
		return ""
	}
	return c.danger(resolved, st)
}

// danger says why a path without symbolic links must not be mounted, under any of its
// names. It returns "" if nothing is known against it.
func (c Checker) danger(resolved string, st os.FileInfo) string {
	if why := c.known(resolved); why != "" {
		return why
	}
	if st.Mode()&os.ModeSocket != 0 && c.isEngine(st) {
		return "it is the engine's socket, and who may write to that is root on the host"
	}
	mounts := mountTable()
	for _, alias := range mounts.aliases(resolved) {
		if why := c.known(alias); why != "" {
			return fmt.Sprintf("it is another name of %s, and %s", alias, why)
		}
	}
	for _, below := range mounts.below(resolved) {
		for _, alias := range mounts.aliases(below) {
			if why := c.known(alias); why != "" {
				return fmt.Sprintf("%s is mounted in it at %s, and %s", alias, below, why)
			}
		}
	}
	return ""
}

// known is spec.DangerousSource that also covers file systems that ignore case, on which
// ".SSH" is ".ssh".
func (c Checker) known(path string) string {
	own := c.Own
	if why := spec.DangerousSource(path, own, c.Home); why != "" {
		return why
	}
	if c.Engine != "" && (path == c.Engine || strings.HasPrefix(c.Engine, strings.TrimSuffix(path, "/")+"/")) {
		return "it is or holds the engine's socket, and who may write to that is root on the host"
	}
	if lower := strings.ToLower(path); lower != path && sameFile(path, lower) {
		return spec.DangerousSource(lower, own, c.Home)
	}
	return ""
}

// sameFile reports whether two paths refer to the same file. Tests replace it, because
// they cannot depend on a file system of the other kind.
var sameFile = func(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

func (c Checker) isEngine(st os.FileInfo) bool {
	for _, path := range []string{c.Engine, "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"} {
		if engine, err := os.Stat(path); path != "" && err == nil && os.SameFile(engine, st) {
			return true
		}
	}
	return false
}

// Copy checks a source to copy.
func (c Checker) Copy(source string) error {
	clean := filepath.Clean(source)
	resolved, err := resolveLinks(clean)
	if err != nil {
		return err
	}
	for _, never := range []string{"/proc", "/sys", "/dev"} {
		if resolved == "/" || resolved == never || strings.HasPrefix(resolved, never+"/") {
			return refusal("%s cannot be copied, because it leads to %s, which holds no ordinary files: name a folder of yours.", clean, resolved)
		}
	}
	st, err := os.Lstat(resolved)
	switch {
	case err != nil:
		return unusable(clean, err)
	case !st.IsDir() && !st.Mode().IsRegular():
		return refusal("%s is neither a file nor a folder, and cannot be copied: name one.", clean)
	}
	var mode uint32 = unix.R_OK
	if st.IsDir() {
		mode |= unix.X_OK
	}
	if err := unix.Faccessat(unix.AT_FDCWD, resolved, mode, unix.AT_EACCESS); err != nil {
		return unusable(clean, err)
	}
	return nil
}

// resolveLinks resolves all symbolic links of a path.
func resolveLinks(clean string) (string, error) {
	resolved, err := filepath.EvalSymlinks(clean)
	switch {
	case err == nil:
		return resolved, nil
	case errors.Is(err, fs.ErrPermission):
		return "", unusable(clean, err)
	}
	st, lookErr := os.Lstat(clean)
	switch {
	case lookErr == nil && st.Mode()&os.ModeSymlink != 0:
		to, _ := os.Readlink(clean)
		return "", refusal("%s is a symbolic link to %s, which leads nowhere: mend the link, or name another path.", clean, to)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "", refusal("%s does not exist on this machine: make it first, or name another path.", clean)
	}
	return "", refusal("%s cannot be followed to a file (%v): name another path.", clean, plain(err))
}

// unusable says why the daemon cannot use a path.
func unusable(path string, err error) *fault.Error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return refusal("agboxd runs as %s, who may not read %s: give it the right to, or name another path.", Self(), path).Because(err)
	case errors.Is(err, fs.ErrNotExist):
		return refusal("%s does not exist on this machine: make it first, or name another path.", path).Because(err)
	}
	return refusal("%s cannot be used (%v): name another path.", path, plain(err)).Because(err)
}

// plain returns an error without the path that its sentence already names.
func plain(err error) error {
	var in *fs.PathError
	if errors.As(err, &in) {
		return in.Err
	}
	return err
}

// Self returns the name of the user that the daemon runs as.
func Self() string {
	id := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(id); err == nil {
		return "user " + u.Username
	}
	return "user " + id
}

func refusal(format string, args ...any) *fault.Error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE, format, args...)
}
