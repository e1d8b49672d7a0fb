// Package hostfiles decides what may leave the host: the sources of mounts, copies and
// the workspace. One rule applies to all of them (spec.DangerousSource), under whatever
// name a source hides. The package also packs what is copied.
//
// A source is opened first and checked then: the rule applies to the file that the
// descriptor holds, not to a name that may mean another file a moment later.
package hostfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
	"github.com/agbox/agbox/spec/policy"
)

// Checker knows what must not leave the host.
type Checker struct {
	// Host is what the rule about sources knows. Its Home is the caller's home; empty if it
	// is not known.
	spec.Host
	// Engine is the path of the engine's socket; empty if it has none.
	Engine string
	// Policy is the operator's upper bound; nil means none.
	Policy *policy.Policy
	// Resolved refuses sources that lead through a symbolic link, except those of tools.
	Resolved bool
	// Thorough refuses to mount a folder writable if not all of it can be searched for what is to
	// be covered. Otherwise that is only told: a person knows the folder.
	Thorough bool
}

// Bound returns the operator's policy, which bounds nothing if there is none.
func (c Checker) Bound() *policy.Policy {
	if c.Policy == nil {
		return policy.None()
	}
	return c.Policy
}

// New returns a Checker for this process, an install, the engine at an address and the
// operator's policy, which may be nil.
func New(install paths.Install, engine string, bound *policy.Policy) Checker {
	c := Checker{Engine: EngineSocket(engine), Policy: bound}
	c.Granted = c.Bound().Granted()
	c.Own = []string{install.Data, install.Config, install.Run}
	if self, err := os.Executable(); err == nil {
		for _, name := range []string{"agbox", "agboxd", "agbox-init"} {
			c.Binaries = append(c.Binaries, filepath.Join(filepath.Dir(self), name))
		}
	}
	add := func(home string) {
		if filepath.IsAbs(home) && home != "/" && !slices.Contains(c.Homes, filepath.Clean(home)) {
			c.Homes = append(c.Homes, filepath.Clean(home))
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		add(home)
	}
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		add(u.HomeDir)
	}
	for _, home := range slices.Clone(c.Homes) {
		if resolved, err := filepath.EvalSymlinks(home); err == nil {
			add(resolved)
		}
	}
	return c
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
	look := func(source string, use Use, path ...any) {
		held, err := c.Hold(source, use, s.GetSecurity().GetAllowDangerousMounts())
		tell(c.coverable(s, held, err, use), path...)
	}
	for i, m := range s.GetMounts() {
		look(m.GetSource(), MountUse(m.GetWritable()), "mounts", i, "source")
	}
	for i, copied := range s.GetCopies() {
		look(copied.GetSource(), Copied, "copies", i, "source")
	}
	build := func(b *agboxv1.BuildSpec, path ...any) {
		if b.GetContext() != "" {
			look(b.GetContext(), Copied, append(path, "context")...)
		}
		for i, f := range b.GetFeatures() {
			look(f.GetSource(), Copied, append(path[:len(path):len(path)], "features", i, "source")...)
		}
	}
	build(s.GetBuild(), "build")
	for i, service := range s.GetServices() {
		build(service.GetBuild(), "services", i, "build")
		for j, copied := range service.GetCopies() {
			look(copied.GetSource(), Copied, "services", i, "copies", j, "source")
		}
	}
	if work := s.GetAgent().GetWork(); work != "" {
		_, err := c.Work(work, s.GetSecurity().GetAllowDangerousMounts())
		tell(err, "agent", "work")
	}
	if w := s.GetWorkspace(); w != nil {
		held, err := c.Workspace(w, s.GetSecurity().GetAllowDangerousMounts())
		tell(c.coverable(s, held, err, MountUse(w.GetMount())), "workspace", "source")
	}
	return all
}

// coverable closes a source and returns why it cannot be used: err, or that it cannot be
// covered.
func (c Checker) coverable(s *agboxv1.CreateSpec, held *Source, err error, use Use) error {
	if err != nil {
		return err
	}
	defer held.Close()
	if use == Writable && !s.GetSecurity().GetWritableConfig() {
		_, err = c.Covers(held)
	}
	return err
}

// Workspace holds the source of a workspace, which must be a folder.
func (c Checker) Workspace(w *agboxv1.WorkspaceSpec, force bool) (*Source, error) {
	use := Copied
	if w.GetMount() {
		use = Writable
	}
	held, err := c.Hold(w.GetSource(), use, force)
	if err == nil && !held.info.IsDir() {
		held.Close()
		return nil, refusal("The workspace %s is a file: name the folder of the project.", w.GetSource())
	}
	return held, err
}

// Danger says why a source must not be mounted unless it is forced, as the end of a
// sentence; "" if nothing is known against it, or it is not there.
func (c Checker) Danger(source string, use Use) string {
	clean := filepath.Clean(source)
	if why := c.known(clean, use); why != "" {
		return why
	}
	held, err := open(clean)
	if err != nil {
		return ""
	}
	defer held.Close()
	return c.danger(held, use)
}

// danger says why an open source must not leave the host, under any of its names; "" if
// nothing is known against it.
func (c Checker) danger(held *Source, use Use) string {
	if why := c.known(held.Path, use); why != "" {
		return why
	}
	if held.info.Mode()&os.ModeSocket != 0 && c.isEngine(held.info) {
		return "it is the engine's socket, and who may write to that is root on the host"
	}
	if held.info.IsDir() {
		for _, name := range spec.CredentialBelow(held.Path) {
			if _, err := os.Lstat(filepath.Join(held.Path, name)); err == nil {
				return "programs keep credentials in it, in " + name
			}
		}
	}
	mounts := mountTable()
	for _, alias := range mounts.aliases(held.Path) {
		if why := c.known(alias, use); why != "" {
			return fmt.Sprintf("it is another name of %s, and %s", alias, why)
		}
	}
	for _, below := range mounts.below(held.Path) {
		for _, alias := range mounts.aliases(below) {
			if why := c.known(alias, use); why != "" {
				return fmt.Sprintf("%s is mounted in it at %s, and %s", alias, below, why)
			}
		}
	}
	return ""
}

// known is spec.DangerousSource, for a file system too that does not tell upper from
// lower case: there ".SSH" is ".ssh".
func (c Checker) known(path string, use Use) string {
	if why := spec.DangerousSource(path, c.Host, use == Writable); why != "" {
		return why
	}
	if c.Engine != "" && (path == c.Engine || strings.HasPrefix(c.Engine, strings.TrimSuffix(path, "/")+"/")) {
		return "it is or holds the engine's socket, and who may write to that is root on the host"
	}
	if lower := strings.ToLower(path); lower != path && sameFile(path, lower) {
		return spec.DangerousSource(lower, c.Host, use == Writable)
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
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE, "%s", document.Quoting(format, args...))
}
