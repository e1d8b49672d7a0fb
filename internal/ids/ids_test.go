package ids

import (
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
	seen := map[string]string{}
	for _, id := range []string{"a-b", "a_b", "a.b", "A-b", "A_B", "a-B"} {
		name := Sanitize(id)
		if other, dup := seen[name]; dup {
			t.Errorf("%q and %q both become %q", id, other, name)
		}
		seen[name] = id
	}
}
