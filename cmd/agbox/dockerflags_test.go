package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAFileOfVariablesIsReadAsDockerReadsIt(t *testing.T) {
	path := writeFile(t, "vars", "\ufeffA=1\n# no\n\n  B = x y # z\nC=\"q\"\nD\nUNSET\nE=\nF=a=b\r\n")
	o := envFlags{files: []string{path, writeFile(t, "more", "A=2\nG=3")}, plain: []string{"G=4"}}
	if _, _, err := o.read(newCLI(t, "").app); err == nil || !strings.Contains(err.Error(), "in line 4: write KEY=VALUE") {
		t.Errorf("a space in a name: %v", err)
	}
	o.files[0] = writeFile(t, "vars", "\ufeffA=1\n# no\n\n  B= x y # z\nC=\"q\"\nD\nUNSET\nE=\nF=a=b\r\n")
	vars, _, err := o.read(newCLI(t, "").app)
	if want := `map[A:2 B: x y # z C:"q" D:from-D E: F:a=b G:4]`; err != nil || fmt.Sprint(vars) != want {
		t.Errorf("%v, %v; want %s", vars, err, want)
	}
	for path, want := range map[string]string{
		"/nosuch":   "no such file",
		"/dev/zero": "larger than 1 MiB",
		writeFile(t, "x", strings.Repeat("A=1\n", maxEnvFile/4+1)): "larger than 1 MiB",
		writeFile(t, "y", "=1"):         "line 1",
		writeFile(t, "z", "export A=1"): "without export",
	} {
		if _, err := envFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestVolumesWithAPathAreMounts(t *testing.T) {
	c := newCLI(t, "")
	o := specOptions{volumes: []string{"data:/d", "/src:/a", "/src:/b:rw", "/src:/c:ro", "~:/h:rw"}}
	spec, err := o.fields(c.app)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, m := range spec.GetMounts() {
		got += fmt.Sprintln(m.GetSource(), m.GetTarget(), m.GetWritable())
	}
	if want := "/src /a false\n/src /b true\n/src /c false\n~ /h true\n"; got != want {
		t.Errorf("mounts %q, want %q", got, want)
	}
	if len(spec.GetVolumes()) != 1 || spec.GetVolumes()[0].GetName() != "data" {
		t.Errorf("volumes %v", spec.GetVolumes())
	}
	if want := "agbox: /src is mounted read-only. Write /src:/a:rw to make it writable, or :ro for no notice.\n"; c.errs.String() != want {
		t.Errorf("said %q", c.errs.String())
	}
	for value, want := range map[string]string{"/a": "--volume: ", "/a:/b:z": "--volume: ", "a:b": "--volume: "} {
		if _, err := (&specOptions{volumes: []string{value}}).fields(c.app); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func TestRunInTheBackgroundPrintsTheIDOfTheCommand(t *testing.T) {
	d, socket := serveScripted(t)
	code, out, _ := agbox(t, socket, "run", "-d", "--name", "demo", "good", "wait", "-d")
	if code != 0 || len(d.execs) != 1 || out != d.execs[0].GetExecId()+"\n" || fmt.Sprint(d.execs[0].GetCommand()) != "[wait -d]" {
		t.Fatalf("code %d, %q, %v", code, out, d.execs)
	}
	// With --rm the daemon removes the sandbox: agbox does not, while the command runs.
	if code, _, errs := agbox(t, socket, "run", "-d", "--rm", "good", "wait"); code != 0 || d.boxes[1].GetState().String() != "SANDBOX_STATE_READY" {
		t.Errorf("--rm: code %d, %q, %v", code, errs, d.boxes[1])
	}
	if code, _, _ := agbox(t, socket, "run", "-d", "--rm", "good", "nope"); code != codeNoCommand || d.boxes[2].GetState().String() != "SANDBOX_STATE_DELETED" {
		t.Errorf("a command that does not start: code %d, %v", code, d.boxes[2])
	}
	c := newCLI(t, socket)
	c.width = func() int { return 80 }
	if code := c.exec(t.Context(), "run", "-d", "good", "wait"); code != 0 || !strings.Contains(c.errs.String(), "The command runs in sandbox "+d.boxes[3].GetSandboxId()) {
		t.Errorf("on a terminal: code %d, %q", code, c.errs.String())
	}
}

func TestAFileOfVariablesIsReadOnce(t *testing.T) {
	path := writeFile(t, "env", "A=1")
	o := envFlags{files: []string{path}, plain: []string{"B=2"}}
	for range 2 {
		envs, _, err := o.read(newCLI(t, "").app)
		if err != nil || envs["A"] != "1" || envs["B"] != "2" {
			t.Errorf("%v, the variables are %v", err, envs)
		}
		_ = os.Remove(path) // as a pipe, it cannot be read again
	}
}

func TestUpSaysOnceThatAFolderIsMountedReadOnly(t *testing.T) {
	_, socket := serveScripted(t)
	t.Chdir(t.TempDir())
	_, _, errs := agbox(t, socket, "up", "--image", "good", "--no-workspace", "-v", "/etc:/x")
	if strings.Count(errs, "/etc is mounted read-only.") != 1 {
		t.Errorf("it says %q", errs)
	}
}
