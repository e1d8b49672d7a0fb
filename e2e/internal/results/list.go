package results

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Entry is a row of a table in a Markdown file whose last column is "test".
type Entry struct {
	// Number is the first cell, if it is a number.
	Number int
	// Cells are the texts of the row, the last one with the tests.
	Cells []string
	// Tests are those that the last cell names.
	Tests []Test
}

// Test is one test function.
type Test struct {
	// Folder of its package, relative to the repository, for example "workspace/archive".
	Folder string
	Name   string
}

// String returns the test as the lists name it.
func (test Test) String() string { return test.Folder + ": " + test.Name }

// ReadList returns the entries of a Markdown file, which is relative to the repository. A
// cell names tests as `TestX`, for tests in the given folder, or as "folder: `TestX`,
// `TestY`" for tests elsewhere. A semicolon ends the folder.
func ReadList(repository, file, folder string) ([]Entry, error) {
	raw, err := os.ReadFile(filepath.Join(repository, file))
	if err != nil {
		return nil, err
	}
	var entries []Entry
	inTable := false
	for line := range strings.Lines(string(raw)) {
		cells := cellsOf(line)
		switch {
		case len(cells) == 0:
			inTable = false
		case cells[len(cells)-1] == "test":
			inTable = true
		case inTable && strings.Trim(line, "|- \n") != "":
			e := Entry{Cells: cells, Tests: testsOf(cells[len(cells)-1], folder)}
			e.Number, _ = strconv.Atoi(cells[0])
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("%s has no table whose last column is \"test\"", file)
	}
	return entries, nil
}

// cellsOf returns the texts of one row of a table, and nothing for any other line.
func cellsOf(line string) []string {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "|") || !strings.HasSuffix(line, "|") {
		return nil
	}
	cells := strings.Split(strings.Trim(line, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// testWords are the parts of a cell that matter: a folder, a test, the end of a folder.
var testWords = regexp.MustCompile("([a-z0-9_/]+): `|`((?:Test|Fuzz)\\w+)`|(;)")

func testsOf(cell, folder string) (tests []Test) {
	in := folder
	for len(cell) > 0 {
		at := testWords.FindStringSubmatchIndex(cell)
		switch {
		case at == nil:
			return tests
		case at[2] >= 0:
			in = cell[at[2]:at[3]]
			cell = cell[at[1]-1:] // the test begins with the quote
			continue
		case at[4] >= 0:
			tests = append(tests, Test{Folder: in, Name: cell[at[4]:at[5]]})
		default:
			in = folder
		}
		cell = cell[at[1]:]
	}
	return tests
}

// Problems returns what is wrong with entries: one without a test whose last cell does not
// begin with the given excuse, and tests that do not exist.
func Problems(repository string, entries []Entry, excuse string) (problems []string) {
	known := make(map[string]map[string]bool)
	for _, e := range entries {
		name := strings.Join(e.Cells[:len(e.Cells)-1], ", ")
		last := e.Cells[len(e.Cells)-1]
		if len(e.Tests) == 0 && (excuse == "" || !strings.HasPrefix(last, excuse)) {
			problems = append(problems, fmt.Sprintf("%s: neither a test nor a reason: %q", name, last))
		}
		for _, test := range e.Tests {
			if known[test.Folder] == nil {
				known[test.Folder] = testNames(filepath.Join(repository, test.Folder))
			}
			if !known[test.Folder][test.Name] {
				problems = append(problems, fmt.Sprintf("%s: there is no test %s", name, test))
			}
		}
	}
	return problems
}

// Exists reports whether a folder of the repository has a test.
func Exists(repository string, test Test) bool {
	return testNames(filepath.Join(repository, test.Folder))[test.Name]
}

// Gaps returns the numbers from 1 to last that no entry has, and those that several have.
func Gaps(entries []Entry, last int) (problems []string) {
	times := make(map[int]int)
	for _, e := range entries {
		times[e.Number]++
	}
	for n := 1; n <= last; n++ {
		if times[n] != 1 {
			problems = append(problems, fmt.Sprintf("there are %d entries with the number %d", times[n], n))
		}
		delete(times, n)
	}
	for n := range times {
		problems = append(problems, fmt.Sprintf("there is an entry with the number %d", n))
	}
	return problems
}

// declared finds the declarations of tests.
var declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(\w+ \*testing\.[TF]\)`)

// testNames returns the names of all tests in a folder.
func testNames(folder string) map[string]bool {
	known := make(map[string]bool)
	files, _ := filepath.Glob(filepath.Join(folder, "*_test.go"))
	for _, file := range files {
		raw, _ := os.ReadFile(file)
		for _, match := range declared.FindAllSubmatch(raw, -1) {
			known[string(match[1])] = true
		}
	}
	return known
}
