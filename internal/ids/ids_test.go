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
