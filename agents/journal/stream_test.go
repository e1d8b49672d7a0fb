package journal

import (
	"strings"
	"testing"
)

func TestNamesOfStreams(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "0": true, "builds.x-1_y": true, strings.Repeat("z", 63): true,
		"": false, strings.Repeat("z", 64): false, ".a": false, "-a": false, "_a": false,
		"A": false, "a/b": false, "a b": false, "a\n": false, "ä": false, "a\x00": false,
	} {
		if got := ValidStream(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
