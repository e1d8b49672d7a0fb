package spec

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestWhereAFolderOfThePrimaryIsOnTheHost(t *testing.T) {
	s := &agboxv1.CreateSpec{
		Workspace: &agboxv1.WorkspaceSpec{Source: "/src", Mount: new(true)},
		Mounts:    []*agboxv1.MountSpec{{Source: "/data/", Target: "/workspace/data"}, {Source: "/etc/x", Target: "/x/"}},
	}
	for folder, want := range map[string]string{
		"": "", "/": "", "/workspace": "/src", "/workspace/a/../b/": "/src/b", "/workspace/data": "/data", "/workspace/data/c": "/data/c",
		"/workspace2": "", "/x": "/etc/x", "/work": "",
	} {
		if got := OnHost(s, folder); got != want {
			t.Errorf("%q is %q, want %q", folder, got, want)
		}
	}
	s.Workspace.Mount = nil
	if got := OnHost(s, "/workspace"); got != "" {
		t.Errorf("a copy is %q", got)
	}
}
