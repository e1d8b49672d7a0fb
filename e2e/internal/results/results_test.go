package results

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// write makes a repository with a list and the tests TestA and FuzzB in folder one/two.
func write(t *testing.T, list string) (repository string) {
	t.Helper()
	repository = t.TempDir()
	tests := filepath.Join(repository, "one", "two")
	if err := os.MkdirAll(tests, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		filepath.Join(repository, "LIST.md"):  list,
		filepath.Join(tests, "some_test.go"):  "package two\n\nfunc TestA(t *testing.T) {}\n\nfunc TestHelper(n int) {}\n",
		filepath.Join(tests, "other_test.go"): "package two\n\nfunc FuzzB(f *testing.F) {}\n",
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return repository
}

func TestAListNamesTestsWithTheirFolders(t *testing.T) {
	repository := write(t, "# List\n\n| # | what |\n|---|---|\n| 9 | `TestZ` |\n\n| # | what | test |\n|---|---|---|\n"+
		"| 1 | a | `TestA`, one/two: `TestB`, `FuzzC`; `TestD`: as said |\n| 2 | b | No test: none |\n")
	got, err := ReadList(repository, "LIST.md", "here")
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{1, []string{"1", "a", "`TestA`, one/two: `TestB`, `FuzzC`; `TestD`: as said"}, []Test{{"here", "TestA"}, {"one/two", "TestB"}, {"one/two", "FuzzC"}, {"here", "TestD"}}},
		{2, []string{"2", "b", "No test: none"}, nil},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the list is read as %v, want %v", got, want)
	}
	if _, err := ReadList(repository, "one/two/some_test.go", "here"); err == nil {
		t.Error("a file without a table is read")
	}
}

func TestWhatIsWrongWithAListIsSaid(t *testing.T) {
	for rows, want := range map[string]string{
		"| 1 | a | `TestA`, `FuzzB` |\n":                 "",
		"| 1 | a | No test: it cannot be made |\n":       "",
		"| 1 | a | It cannot be made |\n":                "neither a test nor a reason",
		"| 1 | a | `TestC` |\n":                          "no test one/two: TestC",
		"| 1 | a | `TestHelper` |\n":                     "no test one/two: TestHelper",
		"| 1 | a | one: `TestA` |\n":                     "no test one: TestA",
		"| 2 | a | `TestA` |\n":                          "0 entries with the number 1\nthere is an entry with the number 2",
		"| 1 | a | `TestA` |\n| 1 | a | `TestA` |\n":     "2 entries with the number 1",
		"| one | a | `TestA` |\n| 1 | again | `TestA` |": "an entry with the number 0",
	} {
		repository := write(t, "| # | what | test |\n|---|---|---|\n"+rows)
		entries, err := ReadList(repository, "LIST.md", "one/two")
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(append(Problems(repository, entries, "No test: "), Gaps(entries, 1)...), "\n")
		if !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%sgives %q, want %q", rows, got, want)
		}
	}
}

// ending is a test whose end the test decides.
type ending struct {
	testing.TB
	cleanups        []func()
	failed, skipped bool
}

func (e *ending) Helper()          {}
func (e *ending) Failed() bool     { return e.failed }
func (e *ending) Skipped() bool    { return e.skipped }
func (e *ending) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }
func (e *ending) end() {
	for _, f := range e.cleanups {
		f()
	}
}

func TestATableIsGoodOnlyIfEveryRowIs(t *testing.T) {
	for result, e := range map[string]*ending{"held": {}, "FAILED": {failed: true}, "SKIPPED": {skipped: true}} {
		table := Table{Kind: "attack", Good: "held"}
		fine, other := &ending{}, e
		table.Row(fine, 2, "the second", 1)
		table.Row(other, 1, "first", 1).Note("measured %d", 7)
		fine.end()
		other.end()
		var out strings.Builder
		if good := table.Print(&out); good != (result == "held") {
			t.Errorf("with a row that is %s the table is good: %t", result, good)
		}
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		want := []string{"", "# attack result took", "1 first " + result + " 0.0s", "measured 7", "2 the second held 0.0s"}
		if !reflect.DeepEqual(lines, want) {
			t.Errorf("printed is\n%s", out.String())
		}
	}
	table := Table{Kind: "fault", Good: "ok", Counted: true}
	table.Row(&ending{}, 1, "never ends", 3).Ran(4)
	var out strings.Builder
	if table.Print(&out) || !strings.Contains(out.String(), "never ends      4  did not end") {
		t.Errorf("a row that did not end is good, or printed as\n%s", out.String())
	}
}

func TestARowThatNoTestMadeIsMissing(t *testing.T) {
	var table Table
	table.Row(&ending{}, 1, "made", 1)
	here, elsewhere := []Test{{"here", "TestA"}}, []Test{{"elsewhere", "TestA"}}
	got := table.missing([]Entry{{Number: 1, Tests: here}, {Number: 2, Tests: here}, {Number: 3, Tests: elsewhere}, {Number: 4}}, "here")
	if !reflect.DeepEqual(got, []string{"2"}) {
		t.Errorf("missing is %v", got)
	}
}

func TestTestsOfOtherPackagesAreRows(t *testing.T) {
	repository := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":               "module example.com/m\n\ngo 1.21\n",
		"one/two/a_test.go":    "package two\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) { t.Run(\"sub\", func(*testing.T) {}) }\n\nfunc TestBad(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { t.Error(\"it is bad\") }) }\n\nfunc TestIdle(t *testing.T) { t.Skip() }\n",
		"other/b_test.go":      "package other\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) { t.Error(\"nobody asked for this\") }\n",
		"broken/two/c_test.go": "package two\n\nfunc TestGood(",
	} {
		path := filepath.Join(repository, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	good, bad, idle := Test{"one/two", "TestGood"}, Test{"one/two", "TestBad"}, Test{"one/two", "TestIdle"}
	missing, broken, own := Test{"one/two", "TestMissing"}, Test{"broken/two", "TestGood"}, Test{"here", "TestGood"}
	table := Table{Kind: "attack", Good: "held"}
	var out strings.Builder
	err := table.Elsewhere(t.Context(), repository, []Entry{
		{1, []string{"1", "good", ""}, []Test{good, own}}, {2, []string{"2", "bad", ""}, []Test{bad, good}}, {3, []string{"3", "idle", ""}, []Test{good, idle}},
		{4, []string{"4", "missing", ""}, []Test{missing}}, {5, []string{"5", "broken", ""}, []Test{broken}}, {6, []string{"6", "own", ""}, []Test{own}},
	}, "here", &out)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range table.rows {
		got = append(got, r.words+": "+r.result)
	}
	want := []string{"good (1 elsewhere): held", "bad (2 elsewhere): FAILED", "idle (2 elsewhere): SKIPPED", "missing (1 elsewhere): did not end", "broken (1 elsewhere): did not end"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the rows are %q, want %q", got, want)
	}
	if said := out.String(); !strings.Contains(said, "it is bad") || strings.Contains(said, "nobody asked") {
		t.Errorf("it says %q", said)
	}
}
