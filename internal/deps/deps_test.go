// Package deps tests the import rules: which package may depend on which. It also tests
// that ARCHITECTURE.md, the map, names each package, and only paths that exist.
package deps

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/agbox/agbox/"

// Import paths used in the rules.
const (
	dockerPath = "github.com/docker/docker"
	// rulesetPath changes the rules of the kernel for the network.
	rulesetPath = "github.com/google/nftables"
	bboltPath   = "go.etcd.io/bbolt"
	// rulesPath validates messages. Its rule language slows down the start of every
	// program that links it.
	rulesPath = "buf.build/go/protovalidate"
	grpcPath  = "google.golang.org/grpc"
)

// list runs go list and returns its words.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	// Without -buildvcs=false, go list fails if git refuses a checkout of another user.
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

// deps lists all direct and indirect dependencies of a package without its tests.
func deps(t *testing.T, pkg string) []string { return list(t, "-deps", module+pkg) }

// within reports whether a package is root or below it.
func within(pkg, root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") }

func TestPackagesDependOnlyOnWhatTheyMay(t *testing.T) {
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
		{"runtime/supervisor/agentsocket", []string{dockerPath, bboltPath, "net/http", module + "daemon", module + "store", module + "proto", module + "runtime/guest"}},
		{"runtime/agentcli", []string{dockerPath, bboltPath, "net/http", module + "daemon", module + "store", module + "proto", module + "runtime/guest", module + "logs"}},
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
					t.Errorf("%s depends on %s", rule.pkg, dep)
				}
			}
		}
	}
}

// There is a supervisor in every sandbox, and these took a megabyte of its private memory.
func TestSupervisorIsLinkedWithoutReflectionOfMessages(t *testing.T) {
	for _, dep := range deps(t, "cmd/agbox-init") {
		if within(dep, grpcPath) || within(dep, "google.golang.org/protobuf") {
			t.Errorf("cmd/agbox-init depends on %s", dep)
		}
	}
}

// TestRulesImportNoIO: what decides about sandboxes and agents is given all that it looks at. The
// formats of agents read from what they are given.
func TestRulesImportNoIO(t *testing.T) {
	forbidden := []string{"os", "net", "syscall", "os/exec", "log", "log/slog", "context", "sync"}
	for pattern, too := range map[string][]string{"./daemon/machine/...": {"io", "bufio", "golang.org/x/sys/unix"}, "./agents/...": {"io/fs", "path/filepath"}} {
		for _, imp := range list(t, "-f", `{{join .Imports " "}}`, pattern) {
			if slices.Contains(forbidden, imp) || slices.Contains(too, imp) {
				t.Errorf("%s imports %s", pattern, imp)
			}
		}
	}
}

// TestOnlyTheOwnerImportsALibrary allows bbolt only in the store, Docker only in its
// adapter, and nftables only in the fence.
func TestOnlyTheOwnerImportsALibrary(t *testing.T) {
	owners := map[string]string{bboltPath: module + "store", dockerPath: module + "runtime/docker", rulesetPath: module + "runtime/fence"}
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

// TestTheContractIsTestedWithoutOurOwnMessages ensures that the client of e2e/contract
// is built from the published tables only.
func TestTheContractIsTestedWithoutOurOwnMessages(t *testing.T) {
	for _, imp := range list(t, "-f", `{{join .TestImports " "}} {{join .XTestImports " "}}`, module+"e2e/contract") {
		if within(imp, module+"proto") || within(imp, module+"client") {
			t.Errorf("e2e/contract imports %s", imp)
		}
	}
}

func TestOnlyTestsImportFakes(t *testing.T) {
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
