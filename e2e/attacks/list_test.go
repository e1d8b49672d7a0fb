package attacks

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// attackCount is how many rows ATTACKS.md has.
const attackCount = 18

// untested begins the last cell of a row that has no test.
const untested = "No test: "

// testFolders hold the tests that ATTACKS.md may name, relative to this folder.
var testFolders = []string{".", "..", "../faults", "../../cmd/agbox", "../../client", "../../daemon", "../../internal", "../../logs", "../../runtime", "../../spec"}

func TestTheListOfAttacksIsTrue(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "ATTACKS.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := testNames(t)
	names := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	listed := make(map[int]bool)
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(cells[1]))
		if err != nil {
			continue
		}
		listed[n] = true
		tests := names.FindAllStringSubmatch(cells[3], -1)
		if len(tests) == 0 && !strings.HasPrefix(strings.TrimSpace(cells[3]), untested) {
			t.Errorf("attack %d has neither a test nor a reason: %q", n, cells[3])
		}
		for _, test := range tests {
			if !known[test[1]] {
				t.Errorf("attack %d names %s, which is no test", n, test[1])
			}
		}
	}
	for n := 1; n <= attackCount; n++ {
		if !listed[n] {
			t.Errorf("ATTACKS.md has no row %d", n)
		}
	}
}

// testNames are the names of all tests in testFolders and below.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	known := make(map[string]bool)
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, folder := range testFolders {
		err := filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			raw, err := os.ReadFile(path)
			for _, match := range declared.FindAllSubmatch(raw, -1) {
				known[string(match[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return known
}
