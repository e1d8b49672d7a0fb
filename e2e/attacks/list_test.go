package attacks

import (
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/results"
)

// attackCount is how many rows ATTACKS.md has.
const attackCount = 133

// untested begins the last cell of a row that has no test.
const untested = "No test: "

// The folder of these tests, and the repository.
const here = "e2e/attacks"

var repository = filepath.Join("..", "..")

// table has the attacks that the tests of this package performed.
var table = results.Table{Kind: "attack", Good: "held"}

// Row enters an attack in the table: its number in ATTACKS.md and what is done, in a few
// words. Its result is the test's. A test that makes several attacks calls it once for
// each.
func Row(t *testing.T, number int, words string) {
	t.Helper()
	table.Row(t, number, words, 1)
}

// attackList returns the rows of ATTACKS.md.
func attackList() ([]results.Entry, error) {
	return results.ReadList(repository, "e2e/ATTACKS.md", here)
}

func TestTheListOfAttacksIsTrue(t *testing.T) {
	attacks, err := attackList()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range append(results.Problems(repository, attacks, untested), results.Gaps(attacks, attackCount)...) {
		t.Error(problem)
	}
}

func TestTheThreatModelIsTrue(t *testing.T) {
	model, err := results.ReadList(repository, "docs/security.md", here)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range results.Problems(repository, model, untested) {
		t.Error(problem)
	}
}
