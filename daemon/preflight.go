package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/version"
	"github.com/agbox/agbox/store"
)

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
