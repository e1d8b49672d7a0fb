package links

import (
	"os"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime/guest"
)

// logFolder is the log folder of a sandbox as the daemon found it when the link was made.
// The container has it mounted. After its removal the supervisor still writes to the old
// folder, which nobody outside can read, and no mount of a running container can be
// replaced.
type logFolder struct {
	path string
	// found is nil if the folder could not be looked at.
	found os.FileInfo
	// deleted is true if the supervisor's folder was removed before the link was made.
	deleted bool
}

func findLogFolder(path string, conn *guest.Conn) logFolder {
	found, err := os.Stat(path)
	if err != nil {
		found = nil
	}
	return logFolder{path: path, found: found, deleted: conn.LogsDeleted()}
}

// lost reports whether the supervisor's folder is not at the path any more.
func (f logFolder) lost() bool {
	now, err := os.Stat(f.path)
	return f.deleted || os.IsNotExist(err) || err == nil && f.found != nil && !os.SameFile(now, f.found)
}

// CheckLogs returns an error if the log folder of the sandbox was removed or replaced on
// the host while its container ran (HOST_PATH_UNUSABLE, errdefs.ErrFailedPrecondition):
// nobody could read the output of a command that is started now.
func (lk *Link) CheckLogs() error {
	if !lk.logs.lost() {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
		"The log folder %s was removed or replaced while sandbox %s ran, so no command can run in it: stop and start the sandbox, which makes the folder again.",
		lk.logs.path, lk.SandboxID).With("sandbox_id", lk.SandboxID)
}

// Recheck makes the loop look at the sandbox now, so that the sandbox shows the problem
// that an exec has met.
func (l *Links) Recheck(sandboxID string) { l.lost(sandboxID) }

// CheckLogs is Link.CheckLogs for the link of a sandbox; nil if there is none.
func (l *Links) CheckLogs(sandboxID string) error {
	if lk := l.current(sandboxID); lk != nil {
		return lk.CheckLogs()
	}
	return nil
}
