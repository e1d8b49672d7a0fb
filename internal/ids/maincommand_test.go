package ids

import (
	"strconv"
	"strings"
	"testing"
)

func TestNoTwoSandboxesShareAMainExec(t *testing.T) {
	seen := map[string]string{}
	for _, id := range []string{
		"x", "x-2", "x-2-3", "x-12345678", "x-2-deadbeef", "deadbeef", "x-deadbeef", "X", "2",
		strings.Repeat("a", MaxLen), strings.Repeat("a", MaxLen-1), strings.Repeat("a", 52), strings.Repeat("a", 53),
	} {
		for life := 1; life <= 4; life++ {
			exec := Main(id)
			if life > 1 {
				exec += "-" + strconv.Itoa(life)
			}
			if !Valid(exec) || !IsMain(id, exec) {
				t.Errorf("life %d of sandbox %s has the main exec %q, valid %v, own %v", life, id, exec, Valid(exec), IsMain(id, exec))
			}
			if other, dup := seen[exec]; dup {
				t.Errorf("%s and %s share the main exec %s", id, other, exec)
			}
			seen[exec] = id
		}
	}
	if Main("demo") != "main-demo" || !Valid(Main(strings.Repeat("a", MaxLen))+"-99999") {
		t.Errorf("Main gives %s and %s", Main("demo"), Main(strings.Repeat("a", MaxLen)))
	}
}

func TestIsMainRefusesOtherExecs(t *testing.T) {
	for _, exec := range []string{"main", "main-", "main-x2", "main-x-1", "main-x-02", "main-x-", "main-x--2", "main-x-+2", "main-y", "x"} {
		if IsMain("x", exec) {
			t.Errorf("%s is taken for the main exec of x", exec)
		}
	}
}
