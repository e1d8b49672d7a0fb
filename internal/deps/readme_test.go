package deps

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// claim is a row of the table of docs/guarantees.md.
type claim struct{ text, checkedBy string }

func claims(t *testing.T) []claim {
	t.Helper()
	raw, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "| claim | where it is checked |\n|---|---|\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	var all []claim
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), " | ")
		if len(cells) != 2 {
			t.Fatalf("the row has %d cells: %s", len(cells), row)
		}
		all = append(all, claim{cells[0], cells[1]})
	}
	if len(all) < 20 {
		t.Fatalf("docs/guarantees.md has %d claims", len(all))
	}
	return all
}

func TestEachGuaranteeLeadsToItsTests(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range claims(t) {
		tests := 0
		for _, q := range quoted.FindAllString(c.checkedBy, -1) {
			name := strings.Trim(q, "`")
			if target, ok := strings.CutPrefix(name, "make "); ok {
				if !bytes.Contains(makefile, []byte("\n"+target+":")) {
					t.Errorf("there is no target %q: %s", name, c.text)
				}
				tests++
				continue
			}
			patterns := []string{name} // a document, or files of tests
			if info, err := os.Stat("../../" + name); err == nil && info.IsDir() {
				patterns = []string{name + "/*_test.go", name + "/*/*_test.go"} // a package, or a folder of packages
			}
			found := 0
			for _, pattern := range patterns {
				files, err := filepath.Glob("../../" + pattern)
				if err != nil {
					t.Fatal(err)
				}
				found += len(files)
			}
			if found == 0 {
				t.Errorf("%s has no test: %s", name, c.text)
			}
			if !strings.HasSuffix(name, ".md") {
				tests += found
			}
		}
		if tests == 0 {
			t.Errorf("it is not said where this is checked: %s", c.text)
		}
	}
}

func TestTheGuaranteesCountTheFaults(t *testing.T) {
	raw, err := os.ReadFile("../../e2e/FAULTS.md")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%d faults, ", len(regexp.MustCompile(`(?m)^\| \d+ \|`).FindAll(raw, -1)))
	for _, c := range claims(t) {
		if strings.HasPrefix(strings.TrimSpace(c.text), want) {
			return
		}
	}
	t.Errorf("no claim begins with %q", want)
}
