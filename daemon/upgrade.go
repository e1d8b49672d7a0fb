package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/version"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// preflightWithin bounds the check of a new binary, which takes milliseconds.
const preflightWithin = 15 * time.Second

// upgrader checks new binaries and chooses the one that the daemon becomes.
type upgrader struct {
	install   paths.Install
	schema    uint32
	arguments []string
	log       *slog.Logger
	// turn is held by the upgrade in progress. After a successful check it is held
	// permanently.
	turn chan struct{}
	// chosen passes the chosen binary on. Its capacity is 1.
	chosen chan *successor
}

// successor is a binary that has passed its check.
type successor struct {
	binary string
	// file is the binary that was checked. It is executed even if the path leads to
	// another one now.
	file       *os.File
	supervisor supervisorFile
}

func newUpgrader(cfg Config, schema uint32) *upgrader {
	return &upgrader{
		install: cfg.Paths, schema: schema, arguments: cfg.Arguments, log: cfg.Log,
		turn: make(chan struct{}, 1), chosen: make(chan *successor, 1),
	}
}

// upgrade checks a binary and chooses it. An empty path means the default binary. The
// daemon changes when it next reads chosen.
func (u *upgrader) upgrade(ctx context.Context, binary string) (*agboxv1.UpgradeDaemonResponse, error) {
	if binary == "" {
		binary = startedFrom
	}
	if !filepath.IsAbs(binary) {
		return nil, refused(errdefs.ErrInvalidArgument, "The path %q of the new agboxd is not absolute; give it from the root on.", binary)
	}
	select {
	case u.turn <- struct{}{}:
	default:
		return nil, refused(errdefs.ErrFailedPrecondition, "An upgrade is under way already; wait for its end.")
	}
	file, err := openSuccessor(binary)
	if err != nil {
		<-u.turn
		return nil, unfit(binary, reason(err, ""), err)
	}
	said, err := u.preflight(ctx, binary, file)
	if err != nil {
		<-u.turn
		return nil, errors.Join(err, file.Close())
	}
	u.log.Info("the new agboxd is fit; this one makes room for it", "binary", binary, "old", version.Version, "new", said.Version)
	u.chosen <- &successor{binary, file, said.Supervisor}
	return &agboxv1.UpgradeDaemonResponse{OldVersion: version.Version, NewVersion: said.Version, Pid: uint32(os.Getpid())}, nil
}

// onHangup upgrades to the default binary at every SIGHUP until ctx ends.
func (u *upgrader) onHangup(ctx context.Context, hangup <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
		}
		if _, err := u.upgrade(ctx, ""); err != nil {
			u.log.Error("SIGHUP: the daemon stays as it is", "error", err)
		}
	}
}

// startedFrom is the path from which this daemon was started, with symbolic links
// unresolved, so that it leads to a binary that is installed there later. It is
// determined at once: once the binary was replaced, its path is unknown.
var startedFrom = findStart()

func findStart() string {
	self, err := os.Executable()
	if err != nil || !filepath.IsAbs(os.Args[0]) {
		return self
	}
	given, err := os.Stat(os.Args[0])
	if err != nil {
		return self
	}
	if running, err := os.Stat("/proc/self/exe"); err != nil || !os.SameFile(given, running) {
		return self
	}
	return os.Args[0]
}

// Preflight is the JSON output of a binary that has passed its check, run as "agboxd
// preflight".
type Preflight struct {
	// Daemon is always "agboxd", to detect another program that exits with success.
	Daemon  string `json:"daemon"`
	Version string `json:"version"`
	// Supervisor is already in the data directory.
	Supervisor supervisorFile `json:"supervisor"`
}

// preflight runs the binary's own check. The schema is an argument, because the database
// is locked while it is open. The daemon's flags are also passed, because the new binary
// will be started with them.
func (u *upgrader) preflight(ctx context.Context, binary string, file *os.File) (Preflight, error) {
	ctx, cancel := context.WithTimeout(ctx, preflightWithin)
	defer cancel()
	arguments := []string{"preflight", fmt.Sprintf("--schema=%d", u.schema), "--data=" + u.install.Data, "--socket=" + u.install.Socket()}
	if len(u.arguments) > 0 {
		arguments = append(arguments, u.arguments[1:]...)
	}
	// The child has the checked file as descriptor 3, also for the interpreter of a script.
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", arguments...)
	cmd.Args[0] = binary
	cmd.ExtraFiles = []*os.File{file}
	var stdout, stderr firstBytes
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return Preflight{}, unfit(binary, "it did not end its check in time", ctx.Err())
	case err != nil:
		return Preflight{}, unfit(binary, reason(err, stderr.String()), err)
	}
	var said Preflight
	if err := json.Unmarshal(stdout.Bytes(), &said); err != nil || said.Daemon != "agboxd" {
		return Preflight{}, unfit(binary, "it is not an agboxd that knows upgrades", err)
	}
	return said, nil
}

// reason says why a check failed, if possible in the new binary's own words.
func reason(err error, stderr string) string {
	text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(stderr), "agboxd: "))
	var exit *exec.ExitError
	var others *errOthers
	switch {
	case errors.As(err, &others):
		return others.why
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file"
	case errors.Is(err, syscall.ENOEXEC):
		return "it is not a program for this machine"
	case errors.Is(err, fs.ErrPermission):
		return "it may not be executed"
	case errors.As(err, &exit) && text != "":
		return strings.TrimSuffix(text, ".")
	case errors.As(err, &exit):
		return "its check ended with " + exit.Error() + " and without a word"
	}
	return err.Error()
}

func unfit(binary, why string, cause error) error {
	return refused(errdefs.ErrFailedPrecondition,
		"The daemon stays as it is, because %s cannot take over: %s. Mend that, or name another agboxd with --binary.", binary, why).
		With("binary", binary).Because(cause)
}

func refused(class error, format string, args ...any) *fault.Error {
	return fault.New(class, agboxv1.ErrorReason_UPGRADE_REFUSED, format, args...)
}

// firstBytes keeps the start of a program's output.
type firstBytes struct{ bytes.Buffer }

// Write accepts everything and keeps up to 4 KiB.
func (b *firstBytes) Write(p []byte) (int, error) {
	const most = 4 << 10
	b.Buffer.Write(p[:min(len(p), max(0, most-b.Len()))])
	return len(p), nil
}

// ReadFrom hides the method of bytes.Buffer, which has no limit.
func (b *firstBytes) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}

// Successor is what a running daemon tells the binary that will follow it.
type Successor struct {
	// Schema is the version of the open database.
	Schema uint32
	// Data and Socket are the paths of the running daemon.
	Data, Socket string
}

// Check checks whether this binary can take over, and reports that on out. It changes
// nothing of the running daemon's and does not open the database, which is in use.
func (s Successor) Check(install paths.Install, out io.Writer) error {
	switch {
	case s.Data != install.Data:
		return fmt.Errorf("it would keep its data in %s, and the running daemon keeps it in %s", install.Data, s.Data)
	case s.Socket != install.Socket():
		return fmt.Errorf("it would listen on %s, and the running daemon listens on %s", install.Socket(), s.Socket)
	case s.Schema > store.SchemaVersion:
		return fmt.Errorf("the database has schema %d, and this agboxd (%s) knows up to %d: it is older than what is running",
			s.Schema, version.Version, store.SchemaVersion)
	}
	// An unused file among the supervisors does no harm.
	supervisor, err := installSupervisor(install, supervisorFile{})
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(Preflight{Daemon: "agboxd", Version: version.Version, Supervisor: supervisor})
}

// tellSystemd reports that the daemon is ready if systemd has requested that
// (sd_notify(3)).
func tellSystemd() error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("READY=1"))
	return err
}
