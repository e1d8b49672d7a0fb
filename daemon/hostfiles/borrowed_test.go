package hostfiles

import (
	"path/filepath"
	"slices"
	"testing"
)

func TestObjectsThatARepositoryBorrowsAreFound(t *testing.T) {
	h := newHost(t)
	first := h.repo(t, "people/me/first")
	git(t, h.root, "clone", "-q", "--shared", first, h.path("people/me/second"))
	git(t, h.root, "clone", "-q", "--shared", h.path("people/me/second"), h.path("people/me/app"))
	git(t, h.path("people/me/app"), "worktree", "add", "-q", h.path("people/me/topic"))
	objects := func(rel string) Borrowed {
		at := filepath.Join(h.path(rel), ".git/objects")
		return Borrowed{Source: at, Inside: at}
	}
	both := []Borrowed{objects("people/me/second"), objects("people/me/first")}
	want := func(rel string, mounted bool, want []Borrowed) {
		t.Helper()
		if got := FindBorrowed(h.path(rel), "/workspace", mounted); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", rel, got, want)
		}
	}
	want("people/me/first", false, nil)
	want("people/me/app", false, both)
	want("people/me/topic", false, both)
	want("people/me/topic", true, both)
	want("other", false, nil)
	h.write(t, "people/me/first/.git/objects/info/alternates", "# none\n\n../../sub/objects\n../../../../lib/objects\n")
	want("people/me/first", false, []Borrowed{{Source: h.path("people/lib/objects"), Inside: "/lib/objects"}})
	// A circle, as a hostile folder may have it.
	h.write(t, "people/me/first/.git/objects/info/alternates", first+"/.git/objects\n")
	if got := FindBorrowed(first, "/workspace", false); len(got) != maxBorrowing {
		t.Errorf("a circle: %+v", got)
	}
}
