package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime/guest"
)

// maxAddress bounds the stored address, in bytes.
const maxAddress = 4096

// StoredEngine returns the address of the engine that has the containers of the install. It
// is empty before the first contact. A daemon that any shell may start must not take it from
// the environment of that shell.
func StoredEngine(install paths.Install) (string, error) {
	raw, err := os.ReadFile(install.EngineAddress())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case len(raw) > maxAddress:
		return "", errors.New(install.EngineAddress() + " is too long for an address")
	}
	return strings.TrimSpace(string(raw)), nil
}

// storeEngine records the address of an engine that was seen to be the install's.
func storeEngine(install paths.Install, address string) error {
	if known, err := StoredEngine(install); err == nil && known == address {
		return nil
	}
	file := install.EngineAddress()
	if err := os.WriteFile(file+".new", []byte(address+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// supervisorFile is a supervisor binary and its copy in the data directory. Comparing
// their contents takes longer than the rest of the daemon's start, so the check before an
// upgrade compares them and hands the result on.
type supervisorFile struct {
	Source string `json:"source"`
	Copy   string `json:"copy"`
	// Size, Inode and the times of the last change show whether the source is still the
	// file that was compared.
	Size     int64  `json:"size"`
	Inode    uint64 `json:"inode"`
	Modified int64  `json:"modified"`
	Changed  int64  `json:"changed"`
}

// installSupervisor copies the supervisor beside this binary to the data directory. known
// is an earlier result, if there is one.
func installSupervisor(install paths.Install, known supervisorFile) (supervisorFile, error) {
	source, err := guest.FindBinary()
	if err != nil {
		return supervisorFile{}, err
	}
	// Before reading it, so that a later change shows.
	now, err := identify(source)
	if err != nil {
		return supervisorFile{}, err
	}
	now.Copy = known.Copy
	if now == known && filepath.Dir(known.Copy) == install.Supervisors() {
		if _, err := os.Lstat(known.Copy); err == nil {
			return known, nil
		}
	}
	now.Copy, err = guest.InstallBinary(source, install.Supervisors())
	return now, err
}

func identify(source string) (supervisorFile, error) {
	info, err := os.Stat(source)
	if err != nil {
		return supervisorFile{}, err
	}
	f := supervisorFile{Source: source, Size: info.Size(), Modified: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.Inode, f.Changed = st.Ino, st.Ctim.Nano()
	}
	return f, nil
}
