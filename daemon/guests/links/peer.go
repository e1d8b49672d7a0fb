package links

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/process"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime/guest"
)

// Check is Verify of one sandbox.
func (l *Links) Check(sandboxID string) guest.Check {
	return func(ctx context.Context, pid int) error { return l.Verify(ctx, sandboxID, pid) }
}

// Verify decides whether the process that listens on the supervisor's socket of a
// sandbox is the first process of the sandbox's container, as the engine said. Any
// other process of the container, and of another one that got hold of the folder, is
// refused as SUPERVISOR_TAMPERED.
//
// The answer of the engine is kept in a file of the host, so the engine is asked once in
// a life of the container and not at each link: commands are served while the engine is
// away, also by the next daemon. If the container was started again behind our back, the
// pid differs and the engine is asked again.
//
// What the process looks like is no proof, such as being PID 1 of its namespace, its cgroup
// or paths inside: the first process of a service or of a nested namespace has these too,
// and some cgroup drivers hide them.
func (l *Links) Verify(ctx context.Context, sandboxID string, pid int) error {
	if pid == 0 {
		return unseen(process.SeesAll())
	}
	peer := process.Identify(pid)
	file := l.paths.GuestInit(sandboxID)
	if known, err := readIdentity(file); err == nil && known == peer {
		return nil
	}
	first, err := l.firstPID(ctx, sandboxID)
	if err != nil {
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE,
			"It cannot be verified who answers as the supervisor of sandbox %s, because the engine does not say which process is the first of its container: %v",
			sandboxID, err).Because(err)
	}
	if first != pid {
		return guest.Tampered(fmt.Sprintf("process %d listens on its socket, but the first process of its container is %d", pid, first), nil)
	}
	if err := writeIdentity(file, peer); err != nil {
		l.log.Warn("the first process of a container cannot be noted; the engine is asked again at the next link", "sandbox_id", sandboxID, "error", err)
	}
	return nil
}

// Lives reports whether the supervisor with which the newest link of a sandbox was made still
// runs. It is false if that is not known, as in a daemon that does not see its processes.
func (l *Links) Lives(sandboxID string) bool {
	known, err := readIdentity(l.paths.GuestInit(sandboxID))
	return err == nil && known.Alive()
}

// End ends the supervisor of the newest link, and with it everything in its container: it gets
// SIGTERM, and SIGKILL after the grace. It is for a container that the engine does not have.
func (l *Links) End(ctx context.Context, sandboxID string, grace time.Duration) error {
	known, err := readIdentity(l.paths.GuestInit(sandboxID))
	if err != nil || !known.Alive() {
		return nil
	}
	if err := known.End(ctx, grace); err != nil {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_ENGINE_FAILED,
			"The engine does not have the container of sandbox %s, and the daemon cannot end its processes: end them as root with \"kill -9 %d\".",
			sandboxID, known.PID).Because(err).With("sandbox_id", sandboxID)
	}
	return nil
}

// SetHostname sets the host name in the container of a linked supervisor, if it is was until then.
func (l *Links) SetHostname(sandboxID, was, name string) error {
	known, err := readIdentity(l.paths.GuestInit(sandboxID))
	switch {
	case errors.Is(err, fs.ErrNotExist) && !process.SeesAll():
		return fmt.Errorf("it does not see the processes of sandboxes: %w", os.ErrPermission)
	case err != nil:
		return err
	}
	return known.SetHostname(was, name)
}

// unseen decides about a listener without a pid here. A daemon that sees all processes
// of the host sees those of its sandboxes. A daemon in a container of its own does not
// see those of other containers, and has nothing to compare (docs/security.md).
func unseen(seesAll bool) error {
	if !seesAll {
		return nil
	}
	return guest.Tampered("an unknown process listens on its socket", nil)
}

func readIdentity(file string) (process.Identity, error) {
	var id process.Identity
	raw, err := os.ReadFile(file)
	if err != nil {
		return id, err
	}
	return id, json.Unmarshal(raw, &id)
}

// writeIdentity replaces the file as a whole. It need not survive a crash of the host,
// which no container survives either.
func writeIdentity(file string, id process.Identity) error {
	raw, err := json.Marshal(id)
	if err != nil {
		return err
	}
	temp := file + ".new"
	if err := os.WriteFile(temp, raw, 0o600); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return os.Rename(temp, file)
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
