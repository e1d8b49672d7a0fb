package deps

import (
	"slices"
	"strings"
	"testing"
)

// rooms are the folders at the top that have packages.
var rooms = []string{"agents", "client", "cmd", "daemon", "docs", "e2e", "internal", "logs", "proto", "runtime", "scripts", "spec", "store", "workspace"}

// maxInternal is the maximum number of packages in internal. What has no other place goes there, so
// it would grow for ever.
const maxInternal = 8

func TestEachPackageIsInARoom(t *testing.T) {
	for _, pkg := range list(t, "./...") {
		room, _, _ := strings.Cut(strings.TrimPrefix(pkg, module), "/")
		if !slices.Contains(rooms, room) {
			t.Errorf("%s is in no room: put it into one of %v", pkg, rooms)
		}
	}
}

// TestInternalHasOnlyWhatSeveralNeed: a package with one importer lives beside that one.
func TestInternalHasOnlyWhatSeveralNeed(t *testing.T) {
	importers := make(map[string]int)
	for _, line := range list(t, "-f", `{{.ImportPath}}{{range .Imports}}|{{.}}{{end}}`, "./...") {
		pkg, imports, _ := strings.Cut(line, "|")
		if _, known := importers[pkg]; !known {
			importers[pkg] = 0
		}
		for imp := range strings.SplitSeq(imports, "|") {
			if !within(pkg, module+"e2e") {
				importers[imp]++
			}
		}
	}
	count := 0
	for pkg, n := range importers {
		if !within(pkg, module+"internal") {
			continue
		}
		if count++; n == 1 {
			t.Errorf("only one package imports %s: move it there", pkg)
		}
	}
	if count == 0 || count > maxInternal {
		t.Errorf("internal has %d packages; at most %d may be there", count, maxInternal)
	}
}

// TestTheWorkspaceKnowsNoDaemon: the packages that merge files serve the daemon, the CLI and the
// supervisor.
func TestTheWorkspaceKnowsNoDaemon(t *testing.T) {
	for _, pkg := range list(t, "./workspace/...") {
		for _, dep := range list(t, "-deps", pkg) {
			for _, never := range []string{"client", "cmd", "daemon", "runtime", "store"} {
				if within(dep, module+never) {
					t.Errorf("%s depends on %s", pkg, dep)
				}
			}
		}
	}
}
