package review

import (
	"archive/tar"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// noted is a comparison that notes the repositories that it sends.
func noted(t *testing.T) (c *comparison, got *[]string) {
	t.Helper()
	c, _ = compared(t, map[string]string{"lib/a/b": "1"})
	got = new([]string)
	c.send = func(m *agboxv1.CompareWorkspaceResponse) error {
		if r := m.GetRepository(); r != nil {
			*got = append(*got, fmt.Sprintf("%s %t", r.GetPath(), r.GetFile()))
		}
		return nil
	}
	return c, got
}

func TestNestedRepositoriesAreSentOnceAndInBounds(t *testing.T) {
	c, got := noted(t)
	folder, file := &tar.Header{Typeflag: tar.TypeDir}, &tar.Header{Typeflag: tar.TypeReg}
	err := errors.Join(
		c.repository("one", folder, false), c.repository("one", folder, false), c.repository("sub", file, false),
		c.repository("cache/x", folder, false), c.repository("../x", folder, false), c.repository("x/.git/y", folder, false),
		c.repository("lib/a", folder, true), c.repository("lib/b", folder, true), c.repository("lib", folder, true),
	)
	if want := []string{"one false", "sub true", "lib/a false", "lib false"}; err != nil || !slices.Equal(*got, want) {
		t.Errorf("%v, %q were sent, want %q", err, *got, want)
	}
	for i := range 2 * maxRepositories {
		err = errors.Join(err, c.repository(fmt.Sprint("many/", i), folder, false))
	}
	if err != nil || len(*got) != maxRepositories {
		t.Errorf("%v, %d were sent", err, len(*got))
	}
}

func TestNestedRepositoriesOfAStoppedSandboxAreSent(t *testing.T) {
	c, got := noted(t)
	open := packed(t,
		entry{name: "workspace/.git/"}, entry{name: "workspace/.git/x/.git/"}, entry{name: "workspace/.gitignore", content: "lib\nout\n"},
		entry{name: "workspace/lib/"}, entry{name: "workspace/lib/.git/"}, entry{name: "workspace/lib/.git/HEAD", content: "ref: x"},
		entry{name: "workspace/out/"}, entry{name: "workspace/out/x/"}, entry{name: "workspace/out/x/.git/"},
		entry{name: "workspace/sub/"}, entry{name: "workspace/sub/.git", content: "gitdir: x"},
	)
	for removal, want := range map[bool][]string{false: {"lib false", "sub true"}, true: {"lib false", "out/x false", "sub true"}} {
		*got = nil
		if err := c.review.CompareStopped(t.Context(), "s", c.base, Options{NamesOnly: true, Removal: removal}, open, c.send); err != nil || !slices.Equal(*got, want) {
			t.Errorf("%v, %q were sent, want %q", err, *got, want)
		}
	}
}

func TestFoldersThatWereNotSearchedAreNamedOnce(t *testing.T) {
	c, _ := noted(t)
	var said []string
	c.send = func(m *agboxv1.CompareWorkspaceResponse) error {
		said = append(said, m.GetUnshown().GetWhat())
		return nil
	}
	err := errors.Join(c.unsearched("cache/x"), c.unsearched("deps/\x1b"), c.unsearched("more"))
	if err != nil || len(said) != 1 || !strings.Contains(said[0], `in or behind "deps/\x1b"`) {
		t.Errorf("%q, %v", said, err)
	}
}
