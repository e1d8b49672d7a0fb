// Package deps holds the rules of who may import whom, as a test.
package deps

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/agbox/agbox/"

// Import paths that rules speak of.
const (
	dockerPath = "github.com/docker/docker"
	bboltPath  = "go.etcd.io/bbolt"
	// rulesPath checks messages; its language of rules costs every start of a program.
	rulesPath = "buf.build/go/protovalidate"
	// grpcPath is the client and server. Its leaf packages codes and status are
	// another matter: ttrpc speaks in them.
	grpcPath = "google.golang.org/grpc"
)

// list runs go list and returns its lines.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	// Whether the history can be read, say in a checkout of somebody else, is of no interest.
	cmd := exec.Command("go", append([]string{"list", "-buildvcs=false"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list %v: %s", args, exit.Stderr)
		}
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// deps lists all that a package is linked with, tests apart.
func deps(t *testing.T, pkg string) []string { return list(t, "-deps", module+pkg) }

// within tells whether a package is the given one or below it.
func within(pkg, root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") }

func TestPackagesReachOnlyWhatTheyMay(t *testing.T) {
	for _, rule := range []struct {
		pkg   string
		never []string
	}{
		{"client", []string{dockerPath, bboltPath, rulesPath, module + "daemon", module + "store", module + "runtime"}},
		{"cmd/agbox", []string{dockerPath, bboltPath, rulesPath, module + "daemon", module + "store", module + "runtime"}},
		{"cmd/agbox-init", []string{dockerPath, bboltPath, module + "daemon", module + "store", module + "proto/agbox"}},
		{"spec", []string{dockerPath, bboltPath, module + "client", module + "daemon", module + "store", module + "runtime", module + "logs"}},
		{"runtime", []string{dockerPath, bboltPath, module + "daemon", module + "store"}},
		{"logs", []string{dockerPath, bboltPath, module + "daemon", module + "store", module + "proto"}},
		{"store", []string{dockerPath, module + "daemon", module + "runtime"}},
		{"runtime/docker", []string{bboltPath, module + "daemon", module + "store"}},
		{"runtime/supervisor", []string{dockerPath, bboltPath, module + "daemon", module + "store", module + "proto/agbox"}},
		{"runtime/supervisor/output", []string{dockerPath, bboltPath, module + "daemon", module + "store", module + "proto", module + "runtime/guest", module + "runtime/supervisor/files"}},
		{"daemon/machine", []string{dockerPath, bboltPath, module + "store", module + "logs", module + "daemon/ledger", module + "runtime/docker", module + "runtime/guest"}},
		{"daemon/reconcile", []string{dockerPath, module + "runtime/docker", module + "runtime/guest", module + "daemon/server"}},
		{"daemon/doctor", []string{dockerPath, module + "runtime/docker", module + "runtime/guest", module + "daemon/server"}},
		{"daemon/guests/links", []string{dockerPath, module + "runtime/docker", module + "daemon/reconcile", module + "daemon/server", module + "daemon/guests/execs", module + "daemon/guests/files"}},
		{"daemon/guests/execs", []string{dockerPath, module + "runtime/docker", module + "daemon/reconcile", module + "daemon/server", module + "daemon/guests/files", module + "daemon/hostfiles"}},
		{"daemon/guests/files", []string{dockerPath, module + "runtime/docker", module + "daemon/reconcile", module + "daemon/server", module + "daemon/guests/execs"}},
		{"daemon/admission", []string{dockerPath, module + "runtime/docker", module + "daemon/reconcile", module + "daemon/guests", module + "daemon/server"}},
		{"daemon/server", []string{dockerPath, module + "runtime/docker"}},
	} {
		for _, dep := range deps(t, rule.pkg) {
			for _, never := range rule.never {
				if within(dep, never) {
					t.Errorf("%s reaches %s", rule.pkg, dep)
				}
			}
		}
	}
}

func TestSupervisorIsLinkedWithoutGRPC(t *testing.T) {
	for _, dep := range deps(t, "cmd/agbox-init") {
		if dep == grpcPath || within(dep, grpcPath+"/internal/transport") {
			t.Errorf("cmd/agbox-init reaches %s", dep)
		}
	}
}

func TestRulesOfTheMachineImportNoIO(t *testing.T) {
	forbidden := []string{"os", "io", "net", "bufio", "syscall", "os/exec", "log", "log/slog", "context", "sync", "golang.org/x/sys/unix"}
	for _, imp := range list(t, "-f", `{{join .Imports " "}}`, module+"daemon/machine") {
		if slices.Contains(forbidden, imp) {
			t.Errorf("daemon/machine imports %s", imp)
		}
	}
}

// TestOnlyOneRoomKnowsALibrary holds bbolt to the store and Docker to its adapter.
func TestOnlyOneRoomKnowsALibrary(t *testing.T) {
	owners := map[string]string{bboltPath: module + "store", dockerPath: module + "runtime/docker"}
	for _, line := range list(t, "-f", `{{.ImportPath}}{{range .Imports}}|{{.}}{{end}}`, "./...") {
		parts := strings.Split(line, "|")
		for _, imp := range parts[1:] {
			for library, owner := range owners {
				if within(imp, library) && !within(parts[0], owner) && !within(parts[0], module+"e2e") {
					t.Errorf("%s imports %s; only %s may", parts[0], imp, owner)
				}
			}
		}
	}
}

// TestTheContractIsTestedWithoutOurOwnMessages keeps the client of e2e/contract one
// that knows the published table only.
func TestTheContractIsTestedWithoutOurOwnMessages(t *testing.T) {
	for _, imp := range list(t, "-f", `{{join .TestImports " "}} {{join .XTestImports " "}}`, module+"e2e/contract") {
		if within(imp, module+"proto") || within(imp, module+"client") {
			t.Errorf("e2e/contract imports %s", imp)
		}
	}
}

func TestFakesStandInTestCodeOnly(t *testing.T) {
	fakes := []string{module + "runtime/runtimetest", module + "daemon/guests/guesttest"}
	for _, line := range list(t, "-f", `{{.ImportPath}}{{range .Imports}}|{{.}}{{end}}`, "./...") {
		parts := strings.Split(line, "|")
		for _, fake := range fakes {
			if slices.Contains(parts[1:], fake) && !within(parts[0], fake) {
				t.Errorf("%s imports %s outside its tests", parts[0], fake)
			}
		}
	}
}
