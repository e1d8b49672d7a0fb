// Package paths builds the paths of an install on the host. No other package does.
//
// Paths follow the XDG base directory specification. AGBOX_HOME moves data,
// configuration and socket below one directory, for tests and for a second install.
package paths

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// maxSocketPath is the maximum length of a Unix socket's path on Linux in bytes:
// sun_path has 108 bytes, including the terminating NUL (unix(7)).
const maxSocketPath = 107

// SocketProblem returns a sentence about a path of a Unix socket that is too long for
// the kernel, and what to do; empty if it is not too long.
func SocketProblem(path string) string {
	if len(path) <= maxSocketPath {
		return ""
	}
	return fmt.Sprintf("The socket path %s has %d bytes, but Linux allows at most %d. Choose a shorter AGBOX_HOME, XDG_RUNTIME_DIR or socket.",
		path, len(path), maxSocketPath)
}

// app is the directory name below the XDG directories, as in the state contract.
const app = "agents-sandbox"

// Install has the directories of one install.
type Install struct {
	// Data has the files that must survive a reboot: database, logs, supervisor links.
	Data string
	// Config has the files that the operator writes.
	Config string
	// Run has the files of a running daemon: the socket and its lock.
	Run string
	// Cache has files that can be fetched again.
	Cache string
}

// FromEnv determines the directories from AGBOX_HOME, the XDG variables, HOME and the
// user id. It creates nothing.
func FromEnv() (Install, error) {
	if home := os.Getenv("AGBOX_HOME"); home != "" {
		abs, err := filepath.Abs(home)
		if err != nil {
			return Install{}, fmt.Errorf("AGBOX_HOME %q cannot be made absolute: %w", home, err)
		}
		return Install{
			Data:   filepath.Join(abs, "data"),
			Config: filepath.Join(abs, "config"),
			Run:    filepath.Join(abs, "run"),
			Cache:  filepath.Join(abs, "cache"),
		}, nil
	}
	data, err := xdg("XDG_DATA_HOME", ".local/share")
	if err != nil {
		return Install{}, err
	}
	config, err := xdg("XDG_CONFIG_HOME", ".config")
	if err != nil {
		return Install{}, err
	}
	cache, err := xdg("XDG_CACHE_HOME", ".cache")
	if err != nil {
		return Install{}, err
	}
	return Install{
		Cache:  filepath.Join(cache, app),
		Data:   filepath.Join(data, app),
		Config: filepath.Join(config, app),
		Run:    runDir(),
	}, nil
}

// xdg returns the directory in the variable, or the fallback below the home directory.
// It ignores a relative value, as the specification requires.
func xdg(variable, fallback string) (string, error) {
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no home directory: set HOME, %s or AGBOX_HOME", variable)
	}
	return filepath.Join(home, fallback), nil
}

// runDir prefers XDG_RUNTIME_DIR, then the system's directories for this purpose, then
// a directory of the user below the temporary directory.
func runDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "agbox")
	}
	uid := os.Getuid()
	if uid == 0 {
		return "/run/agbox"
	}
	if dir := filepath.Join("/run/user", strconv.Itoa(uid)); isDir(dir) {
		return filepath.Join(dir, "agbox")
	}
	return filepath.Join(os.TempDir(), "agbox-"+strconv.Itoa(uid))
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// Socket is the path of the daemon's Unix socket.
func (i Install) Socket() string { return filepath.Join(i.Run, "agboxd.sock") }

// SocketLock is the file that a daemon locks before it replaces a stale socket.
func (i Install) SocketLock() string { return filepath.Join(i.Run, "agboxd.sock.lock") }

// DaemonLog is the log of a daemon that a client started. Package logfile renames it when
// it is full.
func (i Install) DaemonLog() string { return filepath.Join(i.Data, "agboxd.log") }

// ConfigFile has the operator's settings of the daemon. It may be missing.
func (i Install) ConfigFile() string { return filepath.Join(i.Config, "agboxd.yaml") }

// Trust is the directory with the user's answers about sandbox files.
func (i Install) Trust() string { return filepath.Join(i.Config, "trust") }

// Handover is the file with the user's answer about what agents get beside their login.
func (i Install) Handover() string { return filepath.Join(i.Config, "handover.json") }

// EngineAddress is the file with the address of the engine that has the containers.
func (i Install) EngineAddress() string { return filepath.Join(i.Data, "engine-address") }

// Lock is the file that the daemon of the install keeps locked. It contains the
// daemon's pid.
func (i Install) Lock() string { return filepath.Join(i.Data, "agboxd.lock") }

// StartLock is the file that a client locks while it starts a daemon.
func (i Install) StartLock() string { return filepath.Join(i.Data, "agboxd.start.lock") }

// Database is the path of the bbolt file.
func (i Install) Database() string { return filepath.Join(i.Data, "ids.db") }

// Sentinel is the file with the install id beside the database. It distinguishes an
// install that lost its database from a new one.
func (i Install) Sentinel() string { return filepath.Join(i.Data, "install-id") }

// Logs is the directory of all exec logs.
func (i Install) Logs() string { return filepath.Join(i.Data, "exec-logs") }

// SandboxLogs is the log directory of one sandbox. The id must be valid.
func (i Install) SandboxLogs(sandboxID string) string { return filepath.Join(i.Logs(), sandboxID) }

// Agents is the directory of the files of agents.
func (i Install) Agents() string { return filepath.Join(i.Data, "agents") }

// Agent is the directory of one agent. The id must be valid.
func (i Install) Agent(agentID string) string { return filepath.Join(i.Agents(), agentID) }

// AgentMeta describes one agent for a daemon that lost its database. The id must be valid.
func (i Install) AgentMeta(agentID string) string {
	return filepath.Join(i.Agent(agentID), "meta.json")
}

// AgentCheckpoints is the directory of the checkpoints of one agent. The id must be valid.
func (i Install) AgentCheckpoints(agentID string) string {
	return filepath.Join(i.Agent(agentID), "checkpoints")
}

// Supervisors is the directory of the supervisor binaries. Their names contain their
// content hash.
func (i Install) Supervisors() string { return filepath.Join(i.Data, "supervisor") }

// ToolCaches is the directory of the caches of built-in tools, which sandboxes share.
func (i Install) ToolCaches() string { return filepath.Join(i.Data, "tool-caches") }

// Features is the folder with features of development containers that were fetched from
// registries. Clients write it, and the daemon builds images with what is in it.
func (i Install) Features() string { return filepath.Join(i.Cache, "features") }

// BuildContexts has the contexts of builds in progress, in files without names.
func (i Install) BuildContexts() string { return filepath.Join(i.Data, "build-contexts") }

// Guests is the directory of the host's files for all supervisors.
func (i Install) Guests() string { return filepath.Join(i.Data, "guest") }

// Guest is the directory of the host's files for one sandbox's supervisor. The id must
// be valid.
func (i Install) Guest(sandboxID string) string {
	return filepath.Join(i.Guests(), sandboxID)
}

// Scratch has temporary folders of clients; see internal/filesystem.
func (i Install) Scratch() string { return filepath.Join(i.Data, "scratch") }

// Folders has what clients keep about folders of the host that they bring work to, while they
// do; see workspace/edits.
func (i Install) Folders() string { return filepath.Join(i.Data, "folders") }

// Records has what clients keep about a sandbox and folders of the host: conflicts that are not
// resolved, and the file Pushes. It goes with the sandbox. The id must be valid.
func (i Install) Records(sandboxID string) string { return RecordsIn(i.Folders(), sandboxID) }

// RecordsIn is Records below the folder Folders.
func RecordsIn(folders, sandboxID string) string {
	return filepath.Join(folders, "sandbox-"+sandboxID)
}

// Pushes is the file with what a client is about to write to a sandbox while it keeps a folder
// in step; see workspace/edits. The id must be valid.
func (i Install) Pushes(sandboxID string) string {
	return filepath.Join(i.Records(sandboxID), "pushes")
}

// GuestBoot is the supervisor's boot configuration.
func (i Install) GuestBoot(sandboxID string) string {
	return filepath.Join(i.Guest(sandboxID), "boot.pb")
}

// GuestInit has the identity of the container's first process. The container does not
// see it.
func (i Install) GuestInit(sandboxID string) string {
	return filepath.Join(i.Guest(sandboxID), "init.json")
}

// GuestBase is the directory of the base of the workspace, which package bases writes. The
// container does not see it.
func (i Install) GuestBase(sandboxID string) string {
	return filepath.Join(i.Guest(sandboxID), "base")
}

// GuestLink is the directory of the supervisor's socket.
func (i Install) GuestLink(sandboxID string) string {
	return filepath.Join(i.Guest(sandboxID), "link")
}

// Paths inside the primary container.
const (
	// InContainerInit is the supervisor binary.
	InContainerInit = "/.agbox/init"
	// InContainerBoot is the supervisor's boot configuration.
	InContainerBoot = "/.agbox/boot.pb"
	// InContainerLink is the directory of the supervisor's socket.
	InContainerLink = "/.agbox/link"
	// InContainerRun is a directory in memory with the agent socket and the link to the
	// helper of agents.
	InContainerRun = "/.agbox/run"
	// InContainerLogs is the log directory, as the state contract names it.
	InContainerLogs = "/var/log/agents-sandbox"
	// LinkSocket is the name of the supervisor's socket in the link directory.
	LinkSocket = "guest.sock"
)
