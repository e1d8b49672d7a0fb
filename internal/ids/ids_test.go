package ids

import (
	"strconv"
	"strings"
	"testing"
)

func TestNewIsValidAndDiffers(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := New()
		if !Valid(id) || len(id) != newLen {
			t.Fatalf("New() = %q is not a valid id of %d characters", id, newLen)
		}
		if seen[id] {
			t.Fatalf("New() returned %q twice", id)
		}
		seen[id] = true
	}
}

func TestHostileIDsAreRefused(t *testing.T) {
	for _, id := range []string{
		"", ".", "..", "../x", "a/b", "-x", ".x", "_x", "a\x00b", "a b", "é", "а", // the last one is Cyrillic
		strings.Repeat("a", MaxLen+1), strings.Repeat("a", 4096),
	} {
		if Valid(id) {
			t.Errorf("Valid(%q) = true", id)
		}
	}
	for _, id := range []string{"a", "A-1_b.c", strings.Repeat("a", MaxLen)} {
		if !Valid(id) {
			t.Errorf("Valid(%q) = false", id)
		}
	}
}

func TestSanitizeKeepsDifferentIDsApart(t *testing.T) {
	if got := Sanitize("abc-1"); got != "abc-1" {
		t.Errorf("a clean id was changed to %q", got)
	}
	if clean := strings.Repeat("a", 64); Sanitize(clean) != clean {
		t.Errorf("a clean id of 64 bytes was changed to %q", Sanitize(clean))
	}
	seen := map[string]string{}
	long := strings.Repeat("a", MaxLen-1)
	for _, id := range []string{"a-b", "a_b", "a.b", "A-b", "A_B", "a-B", long, long + "a", long + "b", long + "_", long[:64] + "_"} {
		name := Sanitize(id)
		if len(name) > 64+9 {
			t.Errorf("%q becomes %q, with %d bytes", id, name, len(name))
		}
		if other, dup := seen[name]; dup {
			t.Errorf("%q and %q both become %q", id, other, name)
		}
		seen[name] = id
	}
}

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
