package paths

import (
	"strings"
	"testing"
)

func TestASocketPathMayHave107Bytes(t *testing.T) {
	if problem := SocketProblem("/" + strings.Repeat("a", 106)); problem != "" {
		t.Error(problem)
	}
	if problem := SocketProblem("/" + strings.Repeat("a", 107)); !strings.Contains(problem, "has 108 bytes") {
		t.Errorf("108 bytes: %q", problem)
	}
}
