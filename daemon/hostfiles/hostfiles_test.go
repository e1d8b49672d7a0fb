package hostfiles

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
	"github.com/agbox/agbox/workspace/archive"
)

// host is a small host: a home with keys, a project, and agbox's own folder.
type host struct {
	Checker
	root string
}

func newHost(t *testing.T) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "agbox-host-") // the path of t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{root: root}
	for _, dir := range []string{"people/me/.ssh", "people/me/src/sub", "people/me/.config/gcloud", "data/logs", "run", "other"} {
		h.mkdir(t, dir)
	}
	h.write(t, "people/me/src/file", "x")
	h.write(t, "people/me/.ssh/id", "key")
	h.Checker = Checker{
		Host:   spec.Host{Own: []string{h.path("data")}, Binaries: []string{h.path("bin/agboxd")}, Home: h.path("people/me")},
		Engine: h.path("run/engine.sock"),
	}
	return h
}

// held returns the path that a source leads to.
func (h *host) held(source string, use Use, force bool) (string, error) {
	held, err := h.Hold(source, use, force)
	if err != nil {
		return "", err
	}
	defer held.Close()
	return held.Path, nil
}

func (h *host) path(rel string) string { return filepath.Join(h.root, rel) }

func (h *host) mkdir(t *testing.T, rel string) {
	t.Helper()
	if err := os.MkdirAll(h.path(rel), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (h *host) write(t *testing.T, rel, content string) {
	t.Helper()
	h.mkdir(t, filepath.Dir(rel))
	if err := os.WriteFile(h.path(rel), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (h *host) link(t *testing.T, to, rel string) {
	t.Helper()
	if err := os.Symlink(to, h.path(rel)); err != nil {
		t.Fatal(err)
	}
}

func (h *host) socket(t *testing.T, rel string) {
	t.Helper()
	l, err := net.Listen("unix", h.path(rel))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
}

func TestSourcesOfMountsAreRefusedByAnyName(t *testing.T) {
	h := newHost(t)
	h.socket(t, "run/engine.sock")
	h.socket(t, "other/plain.sock")
	if err := os.Link(h.path("run/engine.sock"), h.path("other/hard.sock")); err != nil {
		t.Fatal(err)
	}
	h.link(t, h.path("people/me/.ssh"), "other/keys")
	h.link(t, "keys", "other/keys2")
	h.link(t, h.path("people/me"), "other/home")
	h.link(t, "/proc/self", "other/self")
	h.link(t, "/proc/self/root", "other/root")
	h.link(t, h.path("people/me/src"), "other/project")
	h.link(t, h.path("nowhere"), "other/dangling")
	h.link(t, "loop", "other/loop")
	h.link(t, "/dev/null", "other/null")
	for _, tc := range []struct {
		source, says string // empty: it may be mounted
	}{
		{h.path("people/me/src"), ""},
		{h.path("people/me/src") + "///", ""},
		{h.path("people/me/src/../src/file"), ""},
		{h.path("other/project"), ""},
		{h.path("other/project/sub"), ""},
		{h.path("other/plain.sock"), ""},
		{h.path("people/me/.sshx"), "does not exist"},
		{h.path("other/project/none"), "does not exist"},
		{h.path("people/me/src/file/below"), "does not exist"},
		{h.path("other/dangling"), "symbolic link"},
		{h.path("other/loop"), "symbolic link"},
		{"/", "whole host"},
		{"//", "whole host"},
		{"/proc/1/root", "kernel"},
		{"/sys/kernel", "kernel"},
		{"/dev", "devices"},
		{"/dev/null", "devices"},
		{h.path("other/null"), "leads by a symbolic link to /dev/null"},
		{"/etc", "/etc/"},
		{h.path("people/me"), "whole home"},
		{h.path("people"), "whole home"},
		{h.path("people/me/.ssh"), "credentials"},
		{h.path("people/me/.ssh/id"), "credentials"},
		{h.path("people/me/src/../.ssh"), "credentials"},
		{h.path("people/me/.ssh/"), "credentials"},
		{h.path("people/me/.config/gcloud"), "credentials"},
		{h.path("other/keys"), "leads by a symbolic link to " + h.path("people/me/.ssh")},
		{h.path("other/keys/id"), "leads by a symbolic link"},
		{h.path("other/keys2"), "leads by a symbolic link"},
		{h.path("other/home"), "leads by a symbolic link"},
		{h.path("other/home/.ssh"), "credentials"},
		{h.path("other/self"), "leads by a symbolic link"},
		{h.path("other/root"), "leads by a symbolic link"},
		{h.path("data"), "agbox itself"},
		{h.path("data/logs"), "agbox itself"},
		{h.root, "whole home"},
		{h.path("run"), "engine's socket"},
		{h.path("run/engine.sock"), "engine's socket"},
		{h.path("other/hard.sock"), "engine's socket"},
	} {
		resolved, err := h.held(tc.source, ReadOnly, false)
		switch {
		case tc.says == "" && err != nil:
			t.Errorf("%s: %v", tc.source, err)
		case tc.says == "":
			if real, _ := filepath.EvalSymlinks(tc.source); resolved != real {
				t.Errorf("%s is mounted as %s", tc.source, resolved)
			}
		case err == nil || !strings.Contains(err.Error(), tc.says) || !strings.HasSuffix(err.Error(), ".") || !strings.Contains(err.Error(), ": "):
			t.Errorf("%s: %v, want %q", tc.source, err, tc.says)
		case fault.ReasonOf(err) != agboxv1.ErrorReason_HOST_PATH_UNUSABLE:
			t.Errorf("%s: reason %v", tc.source, fault.ReasonOf(err))
		}
	}
}

// What to do stands behind the path, which a file may make as long as itself.
func TestARefusalOfALongPathSaysWhatToDo(t *testing.T) {
	h := newHost(t)
	for _, source := range []string{h.path(strings.Repeat("long/", 100)), h.path(strings.Repeat("long/", 10_000)), h.path("people/me/.ssh/" + strings.Repeat("./", 500) + "id")} {
		_, err := h.held(source, ReadOnly, false)
		if err == nil || len(err.Error()) > 700 || !strings.Contains(err.Error(), ": make it first, or name another path.") && !strings.Contains(err.Error(), ": name ") {
			t.Errorf("%.40s of %d bytes: %v", source, len(source), err)
			continue
		}
		var report document.Report
		report.Problem(&document.Origin{}, "%s", strings.TrimSuffix(err.Error(), "."))
		if got := report.Problems[0].GetMessage(); got != err.Error() {
			t.Errorf("the problem is %q, want %q", got, err)
		}
	}
}

func TestForceAllowsWhatIsDangerousAndNotWhatIsMissing(t *testing.T) {
	h := newHost(t)
	if resolved, err := h.held("/dev/null", ReadOnly, true); err != nil || resolved != "/dev/null" {
		t.Errorf("%s, %v", resolved, err)
	}
	if _, err := h.held(h.path("none"), ReadOnly, true); err == nil {
		t.Error("what is not there is accepted")
	}
}

// A test cannot change the mounts of the host, so the table is written by hand.
func TestASecondMountOfAFolderIsTheSameFolder(t *testing.T) {
	h := newHost(t)
	h.mkdir(t, "other/alias/id")
	h.mkdir(t, "other/deep/keys")
	before := mountTable
	defer func() { mountTable = before }()
	mountTable = func() mountList {
		return parseMounts(strings.Join([]string{
			"20 1 8:1 / / rw - ext4 /dev/sda rw",
			"21 20 8:1 " + h.path("people/me/.ssh") + " " + h.path("other/alias") + " rw - ext4 /dev/sda rw",
			"22 20 8:1 " + h.path("people/me/.ssh") + " " + h.path("other/deep/keys") + " rw - ext4 /dev/sda rw",
			"23 20 8:2 " + h.path("people/me/.ssh") + " " + h.path("people/me/src") + " rw - ext4 /dev/sdb rw",
			"24 20 0:5 / /with\\040space rw - tmpfs none rw",
		}, "\n"))
	}
	for source, says := range map[string]string{
		"other/alias":       "is another name of " + h.path("people/me/.ssh"),
		"other/alias/id":    "is another name of " + h.path("people/me/.ssh/id"),
		"other/deep":        "is mounted in it at " + h.path("other/deep/keys"),
		"people/me/src/sub": "", // on another file system, whatever its name there
	} {
		_, err := h.held(h.path(source), ReadOnly, false)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v", source, err)
		}
	}
	if list := mountTable(); list[4].at != "/with space" {
		t.Errorf("read as %q", list[4].at)
	}
}

func TestUpperCaseIsNoWayAroundWhereItDoesNotCount(t *testing.T) {
	h := newHost(t)
	h.mkdir(t, "people/me/.SSH")
	if _, err := h.held(h.path("people/me/.SSH"), ReadOnly, false); err != nil {
		t.Errorf("where case counts: %v", err)
	}
	before := sameFile
	defer func() { sameFile = before }()
	sameFile = strings.EqualFold
	if _, err := h.held(h.path("people/me/.SSH"), ReadOnly, false); err == nil || !strings.Contains(err.Error(), "credentials") {
		t.Errorf("where it does not: %v", err)
	}
}

func TestSourcesOfCopies(t *testing.T) {
	h := newHost(t)
	if err := unix.Mkfifo(h.path("other/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.link(t, "/proc", "other/p")
	h.link(t, h.path("people/me/src"), "other/project")
	h.link(t, h.path("people/me/.ssh"), "other/keys")
	h.mkdir(t, "elsewhere/.ssh")
	h.mkdir(t, "elsewhere/src")
	h.write(t, "x/.cargo/credentials.toml", "key")
	h.write(t, "y/.cargo/config.toml", "")
	h.write(t, "bin/agboxd", "")
	for source, says := range map[string]string{
		h.path("people/me/src"):      "",
		h.path("people/me/src/file"): "",
		h.path("other/project"):      "",
		h.path("none"):               "does not exist",
		h.path("other/fifo"):         "neither a file nor a folder",
		h.path("other/p"):            "no ordinary files",
		h.path("people/me/.ssh"):     "credentials",
		h.path("people/me"):          "whole home",
		h.path("other/keys/id"):      "leads by a symbolic link to " + h.path("people/me/.ssh/id"),
		h.path("elsewhere"):          "programs keep credentials in it, in .ssh",
		h.path("elsewhere/src"):      "",
		h.path("x/.cargo"):           "programs keep credentials in it, in credentials.toml",
		h.path("y/.cargo"):           "",
		h.path("data/logs"):          "agbox itself",
		h.path("bin/agboxd"):         "agbox itself",
		h.path("bin"):                "",
		"/etc/shadow":                "password hashes",
		"/etc/hostname":              "belongs to the system",
		"/":                          "no ordinary files",
	} {
		_, err := h.held(source, Copied, false)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// The source is replaced by a link to keys between the check and the copy.
func TestOnlyWhatWasCheckedIsCopied(t *testing.T) {
	h := newHost(t)
	h.write(t, "work/project/file", "x")
	folder := Copy{Source: h.path("work/project")}
	file := Copy{Source: h.path("work/project/file")}
	heldFolder, err := h.Hold(folder.Source, Copied, false)
	if err != nil {
		t.Fatal(err)
	}
	defer heldFolder.Close()
	heldFile, err := h.Hold(file.Source, Copied, false)
	if err != nil {
		t.Fatal(err)
	}
	defer heldFile.Close()
	if err := os.Rename(h.path("work/project"), h.path("work/moved")); err != nil {
		t.Fatal(err)
	}
	h.write(t, "people/me/.ssh/file", "key")
	h.link(t, h.path("people/me/.ssh"), "work/project")

	tree, err := folder.tree(heldFolder)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	names, err := tree.dir.Readdirnames(-1)
	if err != nil || !slices.Equal(names, []string{"file"}) {
		t.Errorf("copied is %v, %v", names, err)
	}
	if tree, err := file.tree(heldFile); err == nil || !strings.Contains(err.Error(), "was replaced while it was checked") {
		t.Errorf("a file: %v, %v", tree, err)
	}
}

func TestProblemsNameTheirField(t *testing.T) {
	h := newHost(t)
	all := h.Spec(&agboxv1.CreateSpec{
		Mounts:    []*agboxv1.MountSpec{{Source: h.path("people/me/src")}, {Source: h.path("none")}},
		Copies:    []*agboxv1.CopySpec{{Source: h.path("none")}},
		Workspace: &agboxv1.WorkspaceSpec{Source: h.path("people/me")},
		Agent:     &agboxv1.AgentSpec{Work: h.path("none")},
	})
	if agent := slices.IndexFunc(all, func(p Problem) bool { return slices.Equal(p.Path, []any{"agent", "work"}) }); agent < 0 {
		t.Errorf("no problem of the agent: %v", all)
	} else {
		all = slices.Delete(all, agent, agent+1)
	}
	if len(all) != 3 || !slices.Equal(all[0].Path, []any{"mounts", 1, "source"}) || !slices.Equal(all[1].Path, []any{"copies", 0, "source"}) ||
		!slices.Equal(all[2].Path, []any{"workspace", "source"}) || !strings.Contains(all[2].Err.Message, "Copying") || !strings.Contains(all[2].Err.Message, "whole home") {
		t.Errorf("got %v", all)
	}
	file := &agboxv1.WorkspaceSpec{Source: h.path("people/me/src/file")}
	if _, err := h.Workspace(file, false); err == nil || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("a file as workspace: %v", err)
	}
}

// packed lists the files of a copy.
func packed(t *testing.T, h *host, one Copy) map[string]*tar.Header {
	t.Helper()
	tree, err := h.Open(one)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	var out bytes.Buffer
	if err := tree.Pack(t.Context(), &out, "x", archive.Owner{UID: 7, GID: 8}, nil, nil); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*tar.Header)
	for in := tar.NewReader(&out); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 7 || header.Gid != 8 {
			t.Errorf("%s belongs to %d:%d", header.Name, header.Uid, header.Gid)
		}
		all[header.Name] = header
	}
}

func TestWhatIsLeftOutOfACopy(t *testing.T) {
	h := newHost(t)
	h.write(t, "p/.gitignore", "*.log\n/build\nnode_modules/\n")
	h.write(t, "p/sub/.gitignore", "!keep.log\nsecret\n")
	for _, name := range []string{"a.c", "a.log", "build/x", "sub/build/x", "sub/keep.log", "sub/secret", "sub/deep/secret", "later/secret", "node_modules/m", ".git/config", ".git/refs/heads/a.log", "big.bin"} {
		h.write(t, "p/"+name, "")
	}
	h.link(t, "nowhere", "p/link")
	for _, tc := range []struct {
		name string
		copy Copy
		want string
	}{
		{"nothing", Copy{}, ".git .git/config .git/refs .git/refs/heads .git/refs/heads/a.log .gitignore a.c a.log big.bin build build/x later later/secret link node_modules node_modules/m sub sub/.gitignore sub/build sub/build/x sub/deep sub/deep/secret sub/keep.log sub/secret"},
		{"what is ignored", Copy{Gitignore: true}, ".git .git/config .git/refs .git/refs/heads .git/refs/heads/a.log .gitignore a.c big.bin later later/secret link sub sub/.gitignore sub/build sub/build/x sub/deep sub/keep.log"},
		{"patterns over files", Copy{Gitignore: true, Excludes: []string{"*.bin", "!a.log", "/.git", ".gitignore", "sub/"}}, "a.c a.log later later/secret link"},
		{"patterns alone", Copy{Excludes: []string{"*", "!*.c"}}, "a.c"},
	} {
		tc.copy.Source = h.path("p")
		var got []string
		for name := range packed(t, h, tc.copy) {
			if name = strings.Trim(strings.TrimPrefix(name, "x"), "/"); name != "" {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("without %s:\n got %s\nwant %s", tc.name, s, tc.want)
		}
	}
}

func TestALinkedSourceIsCopiedAndLinksInItAreKept(t *testing.T) {
	h := newHost(t)
	h.link(t, "file", "people/me/src/near")
	h.link(t, h.path("people/me/src"), "other/project")
	h.link(t, h.path("people/me/src/file"), "other/one")
	all := packed(t, h, Copy{Source: h.path("other/project")})
	if l := all["x/near"]; l == nil || l.Typeflag != tar.TypeSymlink || l.Linkname != "file" || all["x/file"].Mode != 0o600 {
		t.Errorf("got %v", all)
	}
	if all := packed(t, h, Copy{Source: h.path("other/one")}); len(all) != 1 || all["x"].Typeflag != tar.TypeReg {
		t.Errorf("got %v", all)
	}
	if all := packed(t, h, Copy{Content: "abc"}); all["x"].Size != 3 {
		t.Errorf("got %v", all)
	}
}

func TestCopiesOfASpec(t *testing.T) {
	all := Copies(&agboxv1.CreateSpec{
		Workspace: &agboxv1.WorkspaceSpec{Source: "/w"},
		Copies:    []*agboxv1.CopySpec{{Source: "/a", Target: "/b", Owner: "1"}},
		ToolProjections: []*agboxv1.ToolProjection{
			{Tool: "t", Kind: agboxv1.ProjectionKind_PROJECTION_KIND_COPY, Source: "/c", Target: "~/d"},
			{Tool: "t", Kind: agboxv1.ProjectionKind_PROJECTION_KIND_MOUNT, Source: "/e", Target: "/f"},
		},
	})
	if len(all) != 3 || all[0].Target != "/workspace" || !all[0].ForUser || all[1].ForUser || all[1].Owner != "1" || !all[2].ForUser {
		t.Errorf("got %+v", all)
	}
	if got := Copies(&agboxv1.CreateSpec{Workspace: &agboxv1.WorkspaceSpec{Source: "/w", Mount: proto.Bool(true)}}); len(got) != 1 || got[0].Source != "" || !got[0].Added {
		t.Errorf("of what is mounted, more than settings of git is copied: %+v", got)
	}
}

func TestEngineSocketOfAnAddress(t *testing.T) {
	for address, path := range map[string]string{"": "/var/run/docker.sock", "unix:///run/x.sock": "/run/x.sock", "tcp://host:1": ""} {
		if got := EngineSocket(address); got != path {
			t.Errorf("%q: %q", address, got)
		}
	}
}

func TestAHostileGitignoreIsAnErrorThatNamesFileAndLine(t *testing.T) {
	line := strings.Repeat("x", 1000) + "\n"
	for name, c := range map[string]struct {
		files    map[string]string
		excludes []string
		want     string
	}{
		"too large": {files: map[string]string{"p/sub/.gitignore": strings.Repeat(line, 1100)},
			want: "p/sub/.gitignore cannot be used (it is too large: more than 1 MiB)"},
		"too large together": {files: map[string]string{"p/.gitignore": strings.Repeat(line, 1000), "p/a/.gitignore": strings.Repeat(line, 1000), "p/a/b/.gitignore": strings.Repeat(line, 1000), "p/a/b/c/.gitignore": strings.Repeat(line, 1000), "p/a/b/c/d/.gitignore": strings.Repeat(line, 1000)},
			want: "p/a/b/c/d/.gitignore cannot be used (it is too large: together with those of the folders above more than 4 MiB)"},
		"too many together": {files: map[string]string{"p/.gitignore": strings.Repeat("x\n", 9000), "p/a/.gitignore": strings.Repeat("y\n", 9000), "p/a/b/.gitignore": strings.Repeat("z\n", 9000)},
			want: "p/a/b/.gitignore cannot be used (it is too large: together with those of the folders above more than 20000 patterns)"},
		"a long pattern": {files: map[string]string{"p/.gitignore": "a\n" + strings.Repeat("x", 5000)},
			want: "p/.gitignore cannot be used (line 2: the pattern has 5000 bytes"},
		"a long exclude": {files: map[string]string{"p/a": ""}, excludes: []string{"a", strings.Repeat("x", 5000)},
			want: "The exclude_patterns cannot be used (line 2: the pattern has 5000 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			for file, text := range c.files {
				h.write(t, file, text)
			}
			tree, err := h.Open(Copy{Source: h.path("p"), Gitignore: true, Excludes: c.excludes})
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			err = tree.Pack(t.Context(), io.Discard, "x", archive.Owner{}, nil, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// hostPaths sets all fields of a message whose names are those of paths of the host, also of messages in
// it, and returns their places.
func hostPaths(m protoreflect.Message, place string, found map[string]bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		below := place + "." + string(f.Name())
		switch {
		case f.IsMap():
		case f.Kind() == protoreflect.MessageKind && strings.HasPrefix(string(f.Message().FullName()), "agbox.v1."):
			child := m.NewField(f)
			if f.IsList() {
				hostPaths(child.List().AppendMutable().Message(), below+".0", found)
			} else {
				hostPaths(child.Message(), below, found)
			}
			m.Set(f, child)
		case f.Kind() == protoreflect.StringKind && !f.IsList() && slices.Contains([]string{"source", "context", "work"}, string(f.Name())):
			m.Set(f, protoreflect.ValueOfString(below))
			found[below] = true
		}
	}
}

// Check, links and the report of dangerous mounts all go by this list.
func TestTheListOfSourcesHasAllPathsOfASpec(t *testing.T) {
	spec, want := new(agboxv1.CreateSpec), make(map[string]bool)
	hostPaths(spec.ProtoReflect(), "spec", want)
	delete(want, "spec.tool_projections.0.source") // what the tools of the spec stand for
	for _, f := range Sources(spec) {
		place := "spec"
		for _, part := range f.Path {
			place += fmt.Sprintf(".%v", part)
		}
		if *f.Source != place || !want[place] {
			t.Errorf("%s has the path %q", place, *f.Source)
		}
		if f.OfBuild != strings.Contains(place, ".build.") {
			t.Errorf("%s is of a build: %v", place, f.OfBuild)
		}
		delete(want, place)
	}
	for place := range want {
		t.Errorf("%s is missing", place)
	}
}
