package daemon

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime/guest"
)

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
