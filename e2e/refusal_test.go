package e2e

import (
	"strings"
	"testing"
)

// refused checks that agbox ended with the code and said why in a sentence, and
// nothing else.
func refused(t *testing.T, r result, code int, says string) {
	t.Helper()
	refusedBy(t, r, "agbox: ", code, says)
}

// refusedBy is refused for a program that names itself otherwise.
func refusedBy(t *testing.T, r result, name string, code int, says string) {
	t.Helper()
	r.want(t, code)
	if r.stdout != "" {
		t.Errorf("%s: stdout is %q, want nothing", strings.Join(r.args, " "), clip(r.stdout))
	}
	lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	// A second line may say where help is, or what was done about a failure.
	if len(lines) > 2 {
		t.Errorf("%s: stderr has %d lines, want a sentence:\n%s", strings.Join(r.args, " "), len(lines), clip(r.stderr))
	}
	for _, line := range lines {
		if sentence, ok := strings.CutPrefix(line, name); !ok || len(strings.Fields(sentence)) < 3 || len(line) > 500 || !strings.HasSuffix(line, ".") {
			t.Errorf("%s: stderr has %q, want %q and a sentence", strings.Join(r.args, " "), clip(line), name)
		}
	}
	for _, never := range []string{"rpc error", "code = ", "goroutine ", "panic", ".go:", "%!", "<nil>"} {
		if strings.Contains(r.stderr, never) {
			t.Errorf("%s: stderr speaks of %q:\n%s", strings.Join(r.args, " "), never, clip(r.stderr))
		}
	}
	if !strings.Contains(r.stderr, says) {
		t.Errorf("%s: stderr does not speak of %q:\n%s", strings.Join(r.args, " "), says, clip(r.stderr))
	}
}
