package daemon

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/daemon/server"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime/guest"
)

// Config has the settings of an operator.
type Config struct {
	Paths paths.Install
	// Policy is the operator's upper bound for all sandboxes; nil means none.
	Policy *hostfiles.Policy
	// EngineHost is the engine's address, for example unix:///run/docker.sock. Empty
	// means DOCKER_HOST, or else the engine's default. EngineFrom says in words where it
	// comes from.
	EngineHost, EngineFrom string
	// SubnetRanges are the address ranges for the networks of sandboxes. Empty means the
	// adapter's default.
	SubnetRanges []netip.Prefix
	// Revival is the policy for sandboxes whose spec has none. Unspecified means fail.
	Revival agboxv1.RevivalPolicy
	// PendingRecovery is the policy for sandboxes that a daemon was making when it
	// crashed or was stopped.
	PendingRecovery machine.PendingRecovery
	// ChildLifetime is the lifetime of agents that an agent spawns without one. Unspecified
	// means held.
	ChildLifetime agboxv1.AgentLifetime
	// Resync is the maximum pause between two full looks at the engine. 0 means 10 s.
	Resync time.Duration
	// Retention says what is kept for how long. A field that is 0 has its default: 24 h
	// each, 1000 execs and 10000 events.
	Retention machine.Retention
	// Lifetimes are those of sandboxes that do not set their own.
	Lifetimes admission.Lifetimes
	// OrphanGrace is how long an orphan in the engine is left alone. 0 means 10 min.
	OrphanGrace time.Duration
	// MaxExecLog and MaxSandboxLog limit the bytes of output that new sandboxes keep, per
	// stream of an exec and for all execs together. 0 means no limit.
	MaxExecLog    uint64
	MaxSandboxLog uint64
	// MaxSandboxFiles limits the files that a new sandbox has in its folders on the host,
	// besides those of its commands. 0 means no limit.
	MaxSandboxFiles int
	// SandboxMemory limits the memory of new containers whose spec does not.
	SandboxMemory reconcile.MemoryDefault
	// AutoPool is how many sandboxes are kept ready of what was created last. 0 means none.
	AutoPool int
	// Pools are kept besides those of PoolService.
	Pools []server.PoolTemplate
	// HostFence says which sandboxes are kept from the addresses of the host.
	HostFence reconcile.FenceMode
	// CheckDatabase makes the command that checks a database in a separate process after
	// an unclean stop.
	CheckDatabase func(path string) *exec.Cmd
	// Arguments are the daemon's own arguments. After an upgrade the new binary gets the
	// same.
	Arguments []string
	Log       *slog.Logger
}

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
