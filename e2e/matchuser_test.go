package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// owned gives a folder and what is in it to a user, if the tests may. It returns the ids of
// its owner.
func owned(t *testing.T, dir string, uid, gid int) (int, int) {
	t.Helper()
	if os.Getuid() != 0 {
		return os.Getuid(), os.Getgid()
	}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, uid, gid)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return uid, gid
}

func wantOwner(t *testing.T, path string, uid, gid int) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != uid || int(st.Gid) != gid {
		t.Errorf("%s belongs to %d:%d, want %d:%d", path, st.Uid, st.Gid, uid, gid)
	}
}

func TestTheUserOfADevcontainerWritesItsWorkspace(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "site", map[string]string{
		".devcontainer.json": `{"image": "` + harness.ImageBusybox + `", "remoteUser": "agent", "postCreateCommand": "echo created >hook"}`,
		"src/main":           "before",
	})
	uid, gid := owned(t, dir, 4321, 4322)
	hosts := in.write(t, "hosts", map[string]string{"kept": ""})
	owned(t, hosts, 1000, 1000)
	writes := func(name string) {
		t.Helper()
		in.Agbox(t, "exec", "site", "--", "sh", "-c", "whoami; echo "+name+" >src/"+name+" && echo "+name+" >>src/main && touch ~/"+name).
			Want(t, 0).WantOutput(t, "agent\n", "")
		wantOwner(t, filepath.Join(dir, "src", name), uid, gid)
	}
	create := func() {
		t.Helper()
		in.Must(t, "create", "site", "--trust", "--devcontainer", filepath.Join(dir, ".devcontainer.json"), "--mount", hosts+":/home/agent/hosts")
		wantOwner(t, filepath.Join(dir, "hook"), uid, gid)
	}
	create()
	writes("made")
	in.KillDaemon(t)
	writes("killed")
	in.Must(t, "restart", "site")
	writes("restarted")
	in.Must(t, "stop", "site")
	in.KillDaemon(t)
	in.Must(t, "start", "site")
	writes("started")
	in.Must(t, "rm", "-f", "site")
	create()
	writes("again")
	if os.Getuid() == 0 {
		wantOwner(t, hosts, 1000, 1000)
		wantOwner(t, filepath.Join(hosts, "kept"), 1000, 1000)
	}
}

func TestAUserThatKeepsItsIDIsNamedWithARemedy(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	if os.Getuid() != 0 {
		t.Skip("only root gives folders away")
	}
	for _, c := range []struct {
		name, keys string
		uid        int
		want       string
	}{
		{"number", `"remoteUser": "1000"`, 4321, "The user 1000 is a number, so it does not get the id of the owner of DIR and may be unable to write it: write its name, or the number 4321"},
		{"roots", `"remoteUser": "agent"`, 0, "The user agent may be unable to write DIR, because it belongs to root: give the folder to another user, or write the user root"},
		{"fits", `"remoteUser": "4321"`, 4321, ""},
		{"off", `"remoteUser": "agent", "updateRemoteUserUID": false`, 4321, ""},
	} {
		dir := in.write(t, c.name, map[string]string{".devcontainer.json": `{"image": "` + harness.ImageBusybox + `", ` + c.keys + `}`})
		owned(t, dir, c.uid, c.uid)
		said := in.Agbox(t, "config", "validate", "--trust", "--devcontainer", filepath.Join(dir, ".devcontainer.json")).Want(t, 0).Stderr
		if want := strings.ReplaceAll(c.want, "DIR", dir); want != "" && !strings.Contains(said, want) || want == "" && strings.Contains(said, "unable to write") {
			t.Errorf("%s: it says %q, want %q", c.name, said, want)
		}
	}
}
