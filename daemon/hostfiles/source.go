package hostfiles

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/spec"
)

// Source is a source that was opened and then checked. It stays the same file, whatever
// becomes of its name.
type Source struct {
	// Path is absolute, without symbolic links.
	Path string
	// file is opened with O_PATH.
	file *os.File
	info os.FileInfo
}

// Close forgets the source.
func (s *Source) Close() { _ = s.file.Close() } // nothing was written

// again is a path to the open file itself.
func (s *Source) again() string { return "/proc/self/fd/" + strconv.Itoa(int(s.file.Fd())) }

// Hold opens a source and checks it. allowDangerous lifts only the rule about dangerous
// sources, not that of the operator's policy. Errors are fault.Errors.
func (c Checker) Hold(source string, use Use, allowDangerous bool) (*Source, error) {
	return c.hold(source, use, rights{dangerous: allowDangerous})
}

// HoldForTool is Hold for what a built-in tool brings in, which is intended, because the
// caller named the tool.
func (c Checker) HoldForTool(source string, use Use) (*Source, error) {
	return c.hold(source, use, rights{dangerous: true, tool: true})
}

// rights are the rules that do not apply to a source.
type rights struct{ dangerous, tool bool }

func (c Checker) hold(source string, use Use, by rights) (*Source, error) {
	clean := filepath.Clean(source)
	if use == Copied {
		if err := endless(clean, clean); err != nil {
			return nil, err
		}
	}
	if why := c.known(clean, use); why != "" && !by.dangerous {
		return nil, refusal("%s", spec.Refusal(use.doing(), clean, why))
	}
	held, err := open(clean)
	if err != nil {
		return nil, err
	}
	err = c.check(held, clean, use, by)
	if err == nil && c.Resolved && !by.tool && held.Path != clean {
		err = refusal("%s %s is refused, because it has become a symbolic link to %s since the sandbox was requested: remove the sandbox and create it again.", use.doing(), clean, held.Path)
	}
	if err != nil {
		held.Close()
		return nil, err
	}
	return held, nil
}

// check is Hold for an open source, which was named clean.
func (c Checker) check(held *Source, clean string, use Use, by rights) error {
	if use == Copied {
		if err := copyable(held, clean); err != nil {
			return err
		}
	}
	if why := c.Bound().Refuses(held.Path, use == Writable, by.tool); why != "" {
		return refusal("%s %s is refused, because %s: name something else, or ask the operator of this machine.", use.doing(), clean, why)
	}
	if by.dangerous {
		return nil
	}
	if why := c.danger(held, use); why != "" {
		if held.Path != clean {
			why = fmt.Sprintf("it leads by a symbolic link to %s, and %s", held.Path, why)
		}
		return refusal("%s", spec.Refusal(use.doing(), clean, why))
	}
	if held.info.Mode()&os.ModeDevice != 0 {
		return refusal("%s is a device, and devices are not mounted: name it in security.devices.", clean)
	}
	return nil
}

// open opens a path, following symbolic links, and finds out its real name.
func open(clean string) (*Source, error) {
	fd, err := unix.Open(clean, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		if _, err := resolveLinks(clean); err != nil {
			return nil, err // it has the better sentence
		}
		return nil, unusable(clean, err)
	}
	s := &Source{file: os.NewFile(uintptr(fd), clean)}
	if s.info, err = s.file.Stat(); err == nil {
		s.Path, err = os.Readlink(s.again())
	}
	if err != nil {
		s.Close()
		return nil, unusable(clean, err)
	}
	if now, err := os.Lstat(s.Path); err != nil || !os.SameFile(now, s.info) {
		s.Close()
		return nil, refusal("%s was replaced while it was checked: try again when nothing changes it.", clean)
	}
	return s, nil
}

// copyable refuses an open source that cannot be copied.
func copyable(held *Source, clean string) error {
	if err := endless(held.Path, clean); err != nil {
		return err
	}
	if !held.info.IsDir() && !held.info.Mode().IsRegular() {
		return refusal("%s is neither a file nor a folder, and cannot be copied: name one.", clean)
	}
	var mode uint32 = unix.R_OK
	if held.info.IsDir() {
		mode |= unix.X_OK
	}
	if err := unix.Faccessat(unix.AT_FDCWD, held.again(), mode, unix.AT_EACCESS); err != nil {
		return unusable(clean, err)
	}
	return nil
}

// endless refuses to copy what holds no ordinary files. name is what the caller said.
func endless(path, name string) error {
	for _, never := range []string{"/proc", "/sys", "/dev"} {
		if path == "/" || path == never || strings.HasPrefix(path, never+"/") {
			return refusal("%s cannot be copied, because it leads to %s, which holds no ordinary files: name a folder of yours.", name, path)
		}
	}
	return nil
}

// Again opens the source of an existing container's mount, by the path that Hold had
// found. The path must lead to itself: the engine would follow a link that is there now.
func Again(path string) (*Source, error) {
	held, err := open(path)
	if err != nil {
		return nil, err
	}
	if held.Path != path {
		held.Close()
		return nil, refusal("%s leads to %s by a symbolic link that was not there when the sandbox was made: put back the folder or file, or remove the sandbox and create it again.", path, held.Path)
	}
	return held, nil
}

// Identity returns which file it is.
func (s *Source) Identity() (filesystem.FileID, error) {
	id, err := filesystem.IDOf(s.file.Fd())
	if err != nil {
		return filesystem.FileID{}, unusable(s.Path, err)
	}
	return id, nil
}

// Bounded returns why the operator's policy refuses the mount of a source; nil if it
// allows it. byTool says that a built-in tool brings it in.
func (c Checker) Bounded(held *Source, use Use, byTool bool) error {
	if why := c.Bound().Refuses(held.Path, use == Writable, byTool); why != "" {
		return refusal("%s %s is refused, because %s: name something else, or ask the operator of this machine.", use.doing(), held.Path, why)
	}
	return nil
}

// MaxWork is the maximum size of the work of an agent in bytes.
const MaxWork = 64 << 10

// Work reads the file with the work of an agent. allowDangerous is as for Hold. Errors are
// fault.Errors.
func (c Checker) Work(source string, allowDangerous bool) ([]byte, error) {
	held, err := c.Hold(source, Copied, allowDangerous)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	if !held.info.Mode().IsRegular() {
		return nil, refusal("%s is no file, and the work of an agent is one: name the file that says what to do.", source)
	}
	f, err := os.Open(held.again())
	if err != nil {
		return nil, unusable(source, err)
	}
	defer func() { _ = f.Close() }() // only read
	content, err := io.ReadAll(io.LimitReader(f, MaxWork+1))
	if err != nil {
		return nil, unusable(source, err)
	}
	if len(content) > MaxWork {
		return nil, refusal("%s is larger than the 64 KiB that the work of an agent may have: name a smaller file, and give the rest as a copy or a mount.", source)
	}
	return content, nil
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
