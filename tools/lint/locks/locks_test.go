package locks

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// forTests matches the packages that only tests use. They may do I/O under a lock.
var forTests = regexp.MustCompile(`/e2e/|/[a-z]+test/`)

func TestNoLockIsHeldAcrossIO(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	findings, err := Find(root, "./...")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if !forTests.MatchString(strings.TrimPrefix(f.Pos.Filename, root)) {
			t.Error(f)
		}
	}
}

func TestTheSampleHasWhatItsCommentsSay(t *testing.T) {
	findings, err := Find(".", "./testdata/sample")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("testdata/sample/sample.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, f := range findings {
		found[f.Pos.Line] = f.Message
	}
	line := 0
	for text := range strings.Lines(string(source)) {
		line++
		_, want, wanted := strings.Cut(strings.TrimSpace(text), "// want ")
		switch got := found[line]; {
		case wanted && !strings.Contains(got, want):
			t.Errorf("line %d: found %q, want one with %q", line, got, want)
		case !wanted && got != "":
			t.Errorf("line %d: found %q, want nothing", line, got)
		}
	}
}
