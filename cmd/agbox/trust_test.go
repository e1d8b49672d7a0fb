package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// asking makes a folder whose sandbox file requests access to the host.
func asking(t *testing.T) (dir string) {
	t.Helper()
	t.Setenv("AGBOX_HOME", t.TempDir())
	return inFolder(t, map[string]string{
		"agbox.yaml":   "image: good\nbase: compose.yaml\nmounts: [\"./data:/data:rw\"]\nports: [\"8080:80\"]\n",
		"compose.yaml": "services: {web: {image: good, x-agbox: primary, environment: [B, \"FROM_DOTENV=${C_OF_DOTENV}\"]}}\n",
		".env":         "C_OF_DOTENV=secret-value\n",
	})
}

func TestAFileThatAsksForTheHostIsRefusedWithoutATerminal(t *testing.T) {
	dir := asking(t)
	d, socket := serveScripted(t)
	code, out, errs := agbox(t, socket, "create")
	for _, want := range []string{
		"mount     " + dir + "/data at /data, writable", "agbox.yaml:3",
		"port      port 8080 of 127.0.0.1 leads to port 80/tcp",
		"variable  B, with its value in your environment",
		"agbox trust review " + dir + "/agbox.yaml", "--trust",
	} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is not said:\n%s", want, errs)
		}
	}
	if code != codeUsage || out != "" || strings.Contains(errs, "secret-value") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.boxes) > 0 {
		t.Errorf("a sandbox was made: %v", d.boxes)
	}
}

func TestTrustByFlagIsNotRemembered(t *testing.T) {
	asking(t)
	_, socket := serveScripted(t)
	if code, _, errs := agbox(t, socket, "create", "--trust"); code != 0 {
		t.Fatalf("code %d, %s", code, errs)
	}
	if code, _, _ := agbox(t, socket, "create"); code != codeUsage {
		t.Errorf("the next time: code %d", code)
	}
}

func TestAFileThatAsksForNothingIsUsedWithoutAQuestion(t *testing.T) {
	t.Setenv("AGBOX_HOME", t.TempDir())
	inFolder(t, map[string]string{"agbox.yaml": "image: good\nworkspace: .\ncopies: [\"./a:/a\"]\npost_create: [make]\n"})
	_, socket := serveScripted(t)
	if code, _, errs := agbox(t, socket, "create"); code != 0 {
		t.Errorf("code %d, %s", code, errs)
	}
}

// remember answers yes for the files of this folder.
func remember(t *testing.T) {
	t.Helper()
	c := newCLI(t, "")
	var o createOptions
	input, err := o.request(t.Context(), c.app, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, socket := serveScripted(t)
	c.socket = socket
	client, err := c.client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	out, err := new(specOptions).resolved(t.Context(), c.app, client, input.Request)
	if err != nil {
		t.Fatal(err)
	}
	store, err := newTrustStore()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.remember(*question(input, out.GetHostRequests()), c.now()); err != nil {
		t.Fatal(err)
	}
}

func TestAnAnswerHoldsUntilAFileChanges(t *testing.T) {
	for name, change := range map[string]struct{ file, text, says string }{
		"the sandbox file": {"agbox.yaml", "image: good\nbase: compose.yaml\nmounts: [\"./data:/data:rw\"]\nports: [\"8080:80\", \"99:99\"]\n", " + "},
		"a base":           {"compose.yaml", "services: {web: {image: good, x-agbox: primary, environment: [HOME]}}\n", "variable  HOME"},
		"a hook":           {"agbox.yaml", "image: good\nbase: compose.yaml\nmounts: [\"./data:/data:rw\"]\nports: [\"8080:80\"]\npost_create: [evil]\n", "+post_create: [evil]"},
		"variables":        {".env", "C_OF_DOTENV=other\n", "changed: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := asking(t)
			remember(t)
			_, socket := serveScripted(t)
			if code, _, errs := agbox(t, socket, "create"); code != 0 {
				t.Fatalf("unchanged: code %d, %s", code, errs)
			}
			if err := os.WriteFile(filepath.Join(dir, change.file), []byte(change.text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, _, errs := agbox(t, socket, "create")
			if code != codeUsage || !strings.Contains(errs, "You agreed to an earlier version") || !strings.Contains(errs, change.says) {
				t.Errorf("changed: code %d, %s", code, errs)
			}
		})
	}
}

func TestAnswersAreListedShownAndRevoked(t *testing.T) {
	dir := asking(t)
	remember(t)
	if code, out, _ := agbox(t, "", "trust", "ls"); code != 0 || !strings.Contains(out, dir+"/agbox.yaml") {
		t.Errorf("ls: code %d, %s", code, out)
	}
	code, out, _ := agbox(t, "", "trust", "show", ".")
	if code != 0 || !strings.Contains(out, "! mount") || !strings.Contains(out, "ports: [\"8080:80\"]") || strings.Contains(out, "secret-value") {
		t.Errorf("show: code %d, %s", code, out)
	}
	if code, _, errs := agbox(t, "", "trust", "revoke", "agbox.yaml"); code != 0 {
		t.Errorf("revoke: code %d, %s", code, errs)
	}
	_, socket := serveScripted(t)
	if code, _, _ := agbox(t, socket, "create"); code != codeUsage {
		t.Errorf("after that: code %d", code)
	}
	if code, _, _ := agbox(t, "", "trust", "revoke", "agbox.yaml"); code != codeUsage {
		t.Errorf("revoked twice: code %d", code)
	}
}

func TestTheScreenIsNotSteeredByTheFile(t *testing.T) {
	screen, _ := requestScreen(trustQuestion{Path: "/x/agbox.yaml", Requests: []hostRequest{{Text: "mount /a\x1b[2J\u202e\u009b at /b", Where: "a\rb:1"}}}, nil, extent{})
	if strings.ContainsAny(screen, "\x1b\r\u202e\u009b") {
		t.Errorf("%q", screen)
	}
}

func TestTheScreenFitsATerminalAndShowsDangersFirst(t *testing.T) {
	q := trustQuestion{Path: "/x/agbox.yaml", Files: []trustFile{newTrustFile("/x/agbox.yaml", []byte(strings.Repeat("new\n", 100)), false)}}
	var agreed []hostRequest
	for i := range 40 {
		q.Requests = append(q.Requests, hostRequest{Text: fmt.Sprintf("port %d", i), Where: "agbox.yaml:1"})
		agreed = append(agreed, hostRequest{Text: fmt.Sprintf("mount /old%d", i), Where: "agbox.yaml:2", Dangerous: true})
	}
	q.Requests = append(q.Requests, hostRequest{Text: "port " + strings.Repeat("wide 界", 200), Where: "agbox.yaml:4"})
	q.Requests = append(append(q.Requests, agreed...), hostRequest{Text: "mount /new", Where: "agbox.yaml:3", Dangerous: true})
	before := &trustAnswer{trustQuestion: trustQuestion{Path: q.Path, Requests: append(agreed, hostRequest{Text: "gone"}), Files: []trustFile{newTrustFile("/x/agbox.yaml", []byte("old\n"), false)}}}
	for _, columns := range []int{20, 80, 300} {
		for _, rows := range []int{12, 24, 60} {
			for _, before := range []*trustAnswer{nil, before} {
				v := extent{columns: columns, rows: rows}
				text, whole := requestScreen(q, before, v)
				lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
				if n := v.height(lines); n > rows && columns > 20 || whole {
					t.Errorf("%d columns and %d rows: %d rows, whole is %v:\n%s", columns, rows, n, whole, text)
				}
				if before != nil && columns > 20 && !strings.Contains(lines[2], "+! mount /new") {
					t.Errorf("the new danger is not first:\n%s", text)
				}
				if columns > 20 && (!strings.Contains(lines[2], "! mount") || !strings.Contains(text, " of them dangerous\n")) {
					t.Errorf("dangers are not first, or the rest is not counted:\n%s", text)
				}
			}
		}
	}
	for _, v := range []extent{{}, {all: true}, {columns: 80, rows: 500}} {
		text, _ := requestScreen(q, nil, v)
		if strings.Count(text, "\n") < 85 || strings.Contains(text, "... and") {
			t.Errorf("not all is shown with %+v:\n%s", v, text)
		}
	}
}

func TestFilesBesideTheSandboxFileAreReadOnlyInsideItsFolder(t *testing.T) {
	t.Setenv("AGBOX_HOME", t.TempDir())
	_, socket := serveScripted(t)
	const yaml = "image: good\nbase: "
	for name, make := range map[string]func(t *testing.T, dir string) string{
		"lies outside": func(t *testing.T, dir string) string {
			if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "outside.yaml"), []byte("image: good\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return "../outside.yaml"
		},
		"symbolic link": func(t *testing.T, dir string) string {
			if err := os.Symlink("/etc/hostname", filepath.Join(dir, "link.yaml")); err != nil {
				t.Fatal(err)
			}
			return "link.yaml"
		},
		"behind, a symbolic link": func(t *testing.T, dir string) string {
			if err := os.Symlink("/etc", filepath.Join(dir, "sub")); err != nil {
				t.Fatal(err)
			}
			return "sub/x.yaml"
		},
		"not a regular file": func(t *testing.T, dir string) string {
			if err := unix.Mkfifo(filepath.Join(dir, "fifo.yaml"), 0o600); err != nil {
				t.Fatal(err)
			}
			return "fifo.yaml"
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := inFolder(t, nil)
			if err := os.WriteFile("agbox.yaml", []byte(yaml+make(t, dir)+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if code, _, errs := agbox(t, socket, "create"); code != codeUsage || !strings.Contains(errs, name) {
				t.Errorf("code %d, %s", code, errs)
			}
		})
	}
}

func TestAFIFOInPlaceOfASandboxFileDoesNotHang(t *testing.T) {
	inFolder(t, nil)
	if err := unix.Mkfifo("agbox.yaml", 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := agbox(t, "", "create"); code != codeUsage || !strings.Contains(errs, "not a regular file") {
		t.Errorf("code %d, %s", code, errs)
	}
}
