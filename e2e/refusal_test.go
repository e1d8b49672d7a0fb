package e2e

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// refused checks that agbox ended with the code and printed only a sentence that says
// why.
func refused(t *testing.T, r harness.Result, code int, says string) {
	t.Helper()
	refusedBy(t, r, "agbox: ", code, says)
}

// refusedBy is refused for a program with another name.
func refusedBy(t *testing.T, r harness.Result, name string, code int, says string) {
	t.Helper()
	r.Want(t, code)
	if r.Stdout != "" {
		t.Errorf("%s: stdout is %q, want nothing", strings.Join(r.Args, " "), harness.Clip(r.Stdout))
	}
	lines := strings.Split(strings.TrimSuffix(r.Stderr, "\n"), "\n")
	// A second line may point to help, or say what was done after a failure.
	if len(lines) > 2 {
		t.Errorf("%s: stderr has %d lines, want a sentence:\n%s", strings.Join(r.Args, " "), len(lines), harness.Clip(r.Stderr))
	}
	for _, line := range lines {
		if sentence, ok := strings.CutPrefix(line, name); !ok || len(strings.Fields(sentence)) < 3 || len(line) > 500 || !strings.HasSuffix(line, ".") {
			t.Errorf("%s: stderr has %q, want %q and a sentence", strings.Join(r.Args, " "), harness.Clip(line), name)
		}
	}
	for _, never := range []string{"rpc error", "code = ", "goroutine ", "panic", ".go:", "%!", "<nil>"} {
		if strings.Contains(r.Stderr, never) {
			t.Errorf("%s: stderr speaks of %q:\n%s", strings.Join(r.Args, " "), never, harness.Clip(r.Stderr))
		}
	}
	if !strings.Contains(r.Stderr, says) {
		t.Errorf("%s: stderr does not speak of %q:\n%s", strings.Join(r.Args, " "), says, harness.Clip(r.Stderr))
	}
}
