// Package paths is the one place that builds paths of an install on the host.
//
// Paths follow the XDG base directory specification; AGBOX_HOME moves data,
// configuration and socket under one folder, for tests and for a second install
// beside the first.
package paths

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// maxSocketPath is the longest path of a Unix socket on Linux in bytes: sun_path
// holds 108 with the closing NUL (unix(7)).
const maxSocketPath = 107

// SocketProblem says in a sentence that the path of a Unix socket is longer than
// the kernel accepts, and what to do; empty if it is not.
func SocketProblem(path string) string {
	if len(path) <= maxSocketPath {
		return ""
	}
	return fmt.Sprintf("The socket path %s has %d bytes, and Linux takes at most %d. Choose a shorter AGBOX_HOME, XDG_RUNTIME_DIR or socket.",
		path, len(path), maxSocketPath)
}

// app is the folder name under the XDG directories, as in the state contract.
const app = "agents-sandbox"

// Install holds the folders of one install.
type Install struct {
	// Data holds what must survive a reboot: database, logs, supervisor link.
	Data string
	// Config holds what the operator writes.
	Config string
	// Run holds what lives as long as the daemon: the socket and its lock.
	Run string
}

// FromEnv finds the folders from AGBOX_HOME, the XDG variables, HOME and the
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
	return Install{
		Data:   filepath.Join(data, app),
		Config: filepath.Join(config, app),
		Run:    runDir(),
	}, nil
}

// xdg returns the folder that the variable names. The specification has
// relative values ignored.
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

// runDir prefers XDG_RUNTIME_DIR, then the folders that systems keep for the
// purpose, and last a private folder under the temporary directory.
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

// Socket is the daemon's Unix socket.
func (i Install) Socket() string { return filepath.Join(i.Run, "agboxd.sock") }

// SocketLock is locked by the daemon that may replace a stale socket.
func (i Install) SocketLock() string { return filepath.Join(i.Run, "agboxd.sock.lock") }

// DaemonLog is where a daemon that the CLI started writes its own log.
func (i Install) DaemonLog() string { return filepath.Join(i.Data, "agboxd.log") }

// ConfigFile holds the settings of the daemon that the operator wrote; it may be
// missing.
func (i Install) ConfigFile() string { return filepath.Join(i.Config, "agboxd.yaml") }

// Lock is locked by the one daemon of the install; it holds that daemon's pid.
func (i Install) Lock() string { return filepath.Join(i.Data, "agboxd.lock") }

// Database is the bbolt file.
func (i Install) Database() string { return filepath.Join(i.Data, "ids.db") }

// Sentinel holds the install id beside the database, so that a lost database is
// never taken for a new install.
func (i Install) Sentinel() string { return filepath.Join(i.Data, "install-id") }

// Logs is the root of all exec logs.
func (i Install) Logs() string { return filepath.Join(i.Data, "exec-logs") }

// SandboxLogs is the log directory of one sandbox. The id must be valid.
func (i Install) SandboxLogs(sandboxID string) string { return filepath.Join(i.Logs(), sandboxID) }

// Supervisors holds the supervisor binaries, each under its content hash.
func (i Install) Supervisors() string { return filepath.Join(i.Data, "supervisor") }

// ToolCaches holds the caches of built-in tools, which sandboxes share.
func (i Install) ToolCaches() string { return filepath.Join(i.Data, "tool-caches") }

// Guests is the root of the host's sides of all supervisors.
func (i Install) Guests() string { return filepath.Join(i.Data, "guest") }

// Guest is the host's side of one sandbox's supervisor. The id must be valid.
func (i Install) Guest(sandboxID string) string {
	return filepath.Join(i.Guests(), sandboxID)
}

// GuestBoot is the supervisor's boot configuration.
func (i Install) GuestBoot(sandboxID string) string {
	return filepath.Join(i.Guest(sandboxID), "boot.pb")
}

// GuestLink is the folder in which the supervisor listens.
func (i Install) GuestLink(sandboxID string) string {
	return filepath.Join(i.Guest(sandboxID), "link")
}

// Paths inside the primary container.
const (
	// InContainerInit is the supervisor binary.
	InContainerInit = "/.agbox/init"
	// InContainerBoot is the supervisor's boot configuration.
	InContainerBoot = "/.agbox/boot.pb"
	// InContainerLink is the folder in which the supervisor listens.
	InContainerLink = "/.agbox/link"
	// InContainerLogs is the log directory, as the state contract names it.
	InContainerLogs = "/var/log/agents-sandbox"
	// LinkSocket is the name of the supervisor's socket in the link folder.
	LinkSocket = "guest.sock"
)
