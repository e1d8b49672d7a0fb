package spec

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestUnsupportedKeysAreInTheDocument compares the table of the document with the keys that
// the readers refuse or leave out.
func TestUnsupportedKeysAreInTheDocument(t *testing.T) {
	page, err := os.ReadFile("../docs/spec.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "What stays unsupported:")
	table, _, _ = strings.Cut(table, "```")
	for key := range devLeftOut {
		if !strings.Contains(table, "`"+key+"`") {
			t.Errorf("%s is not in the table", key)
		}
	}
	for key := range buildRefused {
		if !strings.Contains(table, "`"+key+"`") {
			t.Errorf("%s of a build is not in the table", key)
		}
	}
	row := regexp.MustCompile("(?m)^\\| compose \\| `runtime`(.*) \\| refuses it").FindStringSubmatch(table)
	for _, found := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch("`runtime`"+row[1], -1) {
		req := base("/project/compose.yaml", "services:\n  a: {image: x, x-agbox: primary, "+found[1]+": host}\n", nil)
		if r := resolve(t, req); r.Spec != nil {
			t.Errorf("%s is not refused: %v", found[1], r.Notices)
		}
	}
}
