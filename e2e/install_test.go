package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// install is an install with further helper methods for these tests.
type install struct{ *harness.Install }

func newInstall(t *testing.T, options ...func(*harness.Install)) *install {
	t.Helper()
	return &install{harness.New(t, options...)}
}

// as makes another user run an install.
func as(who account) func(*harness.Install) {
	return func(in *harness.Install) { in.Who = who.credential }
}

// account is a user of the host.
type account struct {
	name       string
	credential *syscall.Credential
}

// nobody has no rights on any system. The user needs no entry in passwd.
const nobody = 65534

// ordinaryUser may use Docker and has no other rights. Tests that do not run as root
// already run as one.
func ordinaryUser(t *testing.T) account {
	t.Helper()
	if os.Geteuid() != 0 {
		return account{name: "an ordinary user"}
	}
	socket, err := os.Stat(strings.TrimPrefix(harness.DockerAPI.DaemonHost(), "unix://"))
	if err != nil {
		t.Fatalf("the engine's socket cannot be looked at, so that there is no group for an ordinary user: %v", err)
	}
	group := socket.Sys().(*syscall.Stat_t).Gid
	return account{name: "an ordinary user", credential: &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{group}}}
}

// accounts are the users that must be able to use agbox.
func accounts(t *testing.T) []account {
	if os.Geteuid() != 0 {
		return []account{ordinaryUser(t)}
	}
	return []account{{name: "root"}, ordinaryUser(t)}
}

// configure writes the daemon's configuration file.
func (in *install) configure(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(in.Home, "config", "agboxd.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
