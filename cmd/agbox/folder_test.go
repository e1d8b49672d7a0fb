package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestNamesOfSandboxesCanBeTyped(t *testing.T) {
	allowed := regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)
	for folder, want := range map[string]string{
		"/home/ann/shop": "shop-claude-2", "/home/ann/My Shop (old)": "my-shop-old-claude-2", "/x/-rf --no": "rf---no-claude-2",
		"/x/日本語": "claude-2", "/x/\x1b[2J\xff\n": "2j-claude-2", "/": "claude-2", "": "claude-2", "/x/..git": "git-claude-2",
		"/x/" + strings.Repeat("long", 60): strings.Repeat("long", 7) + "lo-claude-2",
	} {
		if got := numbered(folder, "claude", 1); got != want || !allowed.MatchString(got) {
			t.Errorf("%q gives %q, want %q", folder, got, want)
		}
	}
	if got := numbered("/home/ann/shop", "opencode", 0); got != "shop-opencode" {
		t.Errorf("the first is %q", got)
	}
	for range 1000 {
		if got := twoWords(0); !allowed.MatchString(got) || strings.Count(got, "-") != 1 || len(got) > 20 {
			t.Fatalf("a name of two words is %q", got)
		}
	}
}

func TestAnUnnamedSandboxGetsANameUnlessItHasAnID(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "--image", "good")
	agbox(t, socket, "create", "--image", "good", "--id", "mine")
	d.mu.Lock()
	defer d.mu.Unlock()
	names := map[bool]string{}
	for _, h := range d.boxes {
		names[h.GetSandboxId() == "mine"] = h.GetName()
	}
	if names[true] != "" || !strings.Contains(names[false], "-") {
		t.Errorf("with an id the name is %q, without one %q", names[true], names[false])
	}
}

func TestAFolderOfADeadMountHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list []*agboxv1.SandboxHandle
		for _, folder := range []string{"/here", "/dead/mount", "/behind"} {
			list = append(list, &agboxv1.SandboxHandle{Labels: map[string]string{folderLabel: folder}})
		}
		server := make(chan struct{})
		got := placesOf(list, func(h *agboxv1.SandboxHandle) place {
			if h == list[1] {
				<-server
			}
			return place{folder: "/moved" + h.GetLabels()[folderLabel], gone: true}
		})
		if want := []place{{"/moved/here", true}, {"/dead/mount", false}, {"/behind", false}}; !slices.Equal(got, want) {
			t.Errorf("the places are %v, want %v", got, want)
		}
		close(server) // the goroutine of the question ends
	})
}

// Of 10,000 sandboxes a command in a folder asks the file system about those of that folder.
func TestTheFoldersOfOtherSandboxesAreNotLookedAt(t *testing.T) {
	dir := resolvedLinks(t.TempDir())
	var list []*agboxv1.SandboxHandle
	add := func(folder, id string) {
		list = append(list, &agboxv1.SandboxHandle{SandboxId: fmt.Sprint(len(list)), Labels: map[string]string{folderLabel: folder, folderIDLabel: id}})
	}
	for i := range 10_000 {
		add(fmt.Sprintf("/elsewhere/%d", i), fmt.Sprintf("%d-1.000000000", i))
	}
	list = append(list, &agboxv1.SandboxHandle{SandboxId: "without a folder"})
	add(dir, folderID(dir))
	add("/the/old/place", folderID(dir))
	add(filepath.Dir(dir), "")
	add(dir+"/below", "")
	add("/", "")
	var got []string
	for _, h := range near(list, dir) {
		got = append(got, h.GetSandboxId())
	}
	if want := []string{"10001", "10002", "10003", "10005"}; !slices.Equal(got, want) {
		t.Errorf("it looks at %d sandboxes, want %v", len(got), want)
	}
}
