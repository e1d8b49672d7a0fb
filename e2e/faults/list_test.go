package faults

import (
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/results"
)

// faultCount is the number of faults in the list.
const faultCount = 77

// impossible begins the text of a fault without a test.
const impossible = "Cannot be made here: "

// The folder of these tests, and the repository.
const here = "e2e/faults"

var repository = filepath.Join("..", "..")

// table has the faults that the tests of this package injected. FAULTS.md numbers the
// faults and lists those without a test, with the reason.
var table = results.Table{Kind: "fault", Good: "ok", Counted: true}

// Row adds a fault to the table: its number in FAULTS.md, a short description, and how
// many times this test injects it. Its result is that of the test. A test of several
// faults calls Row once for each.
func Row(t *testing.T, number int, words string, times int) *results.Row {
	t.Helper()
	return table.Row(t, number, words, times)
}

// faultList returns the rows of FAULTS.md.
func faultList() ([]results.Entry, error) {
	return results.ReadList(repository, "e2e/FAULTS.md", here)
}

func TestTheListOfFaultsIsTrue(t *testing.T) {
	faults, err := faultList()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range append(results.Problems(repository, faults, impossible), results.Gaps(faults, faultCount)...) {
		t.Error(problem)
	}
}
