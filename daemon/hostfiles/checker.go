package hostfiles

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
)

// Use is what is done with a source.
type Use int

// The uses.
const (
	Copied Use = iota
	ReadOnly
	Writable
)

// MountUse is the use of a mount.
func MountUse(writable bool) Use {
	if writable {
		return Writable
	}
	return ReadOnly
}

// doing begins a sentence about a use.
func (u Use) doing() string {
	if u == Copied {
		return "Copying"
	}
	return "Mounting"
}

// Of names a use of a source.
func (u Use) Of(source string) string {
	switch u {
	case ReadOnly:
		return "mount of " + source + ", read-only"
	case Writable:
		return "mount of " + source + ", writable"
	}
	return "copy of " + source
}

// Checker knows what must not leave the host.
type Checker struct {
	// Host is what the rule about sources knows. Its Home is the caller's home; empty if it
	// is not known.
	spec.Host
	// Engine is the path of the engine's socket; empty if it has none.
	Engine string
	// Policy is the operator's upper bound; nil means none.
	Policy *Policy
	// Resolved refuses sources that lead through a symbolic link, except those of tools.
	Resolved bool
	// Thorough refuses to mount a folder writable if not all of it can be searched for what is to
	// be covered. Otherwise that is only told: a person knows the folder.
	Thorough bool
}

// Bound returns the operator's policy, which bounds nothing if there is none.
func (c Checker) Bound() *Policy {
	if c.Policy == nil {
		return NoPolicy()
	}
	return c.Policy
}

// New returns a Checker for this process, an install, the engine at an address and the
// operator's policy, which may be nil.
func New(install paths.Install, engine string, bound *Policy) Checker {
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

// mounted is one line of /proc/self/mountinfo: which part of which file system is mounted
// where.
type mounted struct {
	device string
	// root is the part of the file system that is mounted, at is the mount point.
	root, at string
}

type mountList []mounted

// mountTable reads the mounts of the daemon's mount namespace. It is empty if the kernel
// has no such table.
var mountTable = func() mountList {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	return parseMounts(string(raw))
}

func parseMounts(text string) mountList {
	var list mountList
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		list = append(list, mounted{device: fields[2], root: unescape(fields[3]), at: unescape(fields[4])})
	}
	return list
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// aliases returns the other paths of the same file. They exist if a part of its file
// system is mounted more than once.
func (l mountList) aliases(p string) []string {
	at := -1
	for i, m := range l {
		// Of several mounts at the same path the last one is on top.
		if within(p, m.at) && (at < 0 || len(m.at) >= len(l[at].at)) {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	inside := path.Join(l[at].root, strings.TrimPrefix(p, l[at].at))
	var all []string
	for _, m := range l {
		if m.device != l[at].device || !within(inside, m.root) {
			continue
		}
		if alias := path.Join(m.at, strings.TrimPrefix(inside, m.root)); alias != p && !slices.Contains(all, alias) {
			all = append(all, alias)
		}
	}
	return all
}

// below returns the mount points below a path.
func (l mountList) below(p string) []string {
	var all []string
	for _, m := range l {
		if m.at != p && within(m.at, p) {
			all = append(all, m.at)
		}
	}
	return all
}
