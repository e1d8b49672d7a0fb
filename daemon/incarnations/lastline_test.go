package incarnations

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheLineThatNamesTheErrorIsChosen(t *testing.T) {
	for name, row := range map[string]struct{ text, want string }{
		"nothing":           {"", ""},
		"plain":             {"starting\nno such file: x\n\n", "no such file: x"},
		"a Go panic":        {"starting\npanic: no config\n\ngoroutine 1 [running]:\nmain.main()\n\t/a/main.go:5 +0x2c\nexit status 2\n", "panic: no config"},
		"a Go signal":       {"panic: runtime error: invalid memory address or nil pointer dereference\n[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x1]\n\ngoroutine 1 [running]:\nmain.f(...)\n\t/a/main.go:9\ncreated by main.main in goroutine 1\n\t/a/main.go:4 +0x1\n", "panic: runtime error: invalid memory address or nil pointer dereference"},
		"Go with registers": {"fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [chan receive]:\nmain.main()\n\t/a/main.go:5 +0x2c\n\nrax    0xca\nrbx    0x0\nrip    0x46e0a1\nrflags 0x286\ncs     0x33\nfs     0x0\ngs     0x0\n", "fatal error: all goroutines are asleep - deadlock!"},
		"a Go abort":        {"SIGABRT: abort\nPC=0x46 m=0 sigcode=0\n\ngoroutine 0 [idle]:\nruntime.futex()\n\t/go/x.s:1 +0x2\n\ngs     0x0\n", "SIGABRT: abort"},
		"Go, panic again":   {"panic: a [recovered]\n\tpanic: b\n\ngoroutine 1 [running]:\nmain.main()\n\t/a/main.go:5 +0x2c\n", "panic: b"},
		"Python":            {"Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\nValueError: no such thing\n", "ValueError: no such thing"},
		"Python, chained":   {"Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"a.py\", line 3\nRuntimeError: second\nhint: see the manual\n", "RuntimeError: second"},
		"Python, handled":   {"Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'a'\none\ntwo\nthree\ncannot go on\n", "cannot go on"},
		"Node":              {"/a/x.js:1\nthrow new TypeError('no');\n^\n\nTypeError: no\n    at Object.<anonymous> (/a/x.js:1:7)\n    at node:internal/main:28\n\nNode.js v20.1.0\n", "TypeError: no"},
		"Node, no stack":    {"Error: said by the program\nbye\n", "bye"},
		"Java":              {"Exception in thread \"main\" java.lang.RuntimeException: a\n\tat A.main(A.java:3)\nCaused by: java.io.IOException: disk\n\tat A.read(A.java:9)\n\t... 1 more\n", "Caused by: java.io.IOException: disk"},
		"Rust":              {"thread 'main' panicked at src/main.rs:2:5:\nno luck\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n", "no luck"},
		"only a mark":       {"Traceback (most recent call last):\n  File \"a.py\", line 1\n", "File \"a.py\", line 1"},
		"escapes":           {"\x1b[31mpanic: red\x1b[0m\n", "[31mpanic: red [0m"},
	} {
		if got, _ := words(row.text); got != row.want {
			t.Errorf("%s: %q; want %q", name, got, row.want)
		}
	}
}

// TestTheErrorOfARealGoProgramIsFound: with GOTRACEBACK=crash, and from a shell.
func TestTheErrorOfARealGoProgramIsFound(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte("package main\n\nfunc main() {\n\tvar m map[string]int\n\tm[\"a\"] = 1\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "main")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, traceback := range []string{"none", "single", "all", "system", "crash"} {
		c := exec.CommandContext(t.Context(), "sh", "-c", "ulimit -c 0; GOTRACEBACK="+traceback+" "+binary+"; echo wrapper: failed >&2; exit 1")
		out := new(strings.Builder)
		c.Stderr = out
		if err := c.Run(); err == nil {
			t.Fatal("it did not fail")
		}
		want := "panic: assignment to entry in nil map"
		if traceback == "none" {
			want = "wrapper: failed"
		}
		if got, _ := words(out.String()); got != want {
			t.Errorf("with the stacks %q: %q; want %q, of %s", traceback, got, want, out)
		}
	}
}

// TestTheStackBeginsWithItsError: of a long one, the end may be registers.
func TestTheStackBeginsWithItsError(t *testing.T) {
	long := "starting\npanic: no\n\ngoroutine 1 [running]:\n" + strings.Repeat("main.f(...)\n\t/a/main.go:9 +0x1\n", 200) + "gs     0x0\n"
	if _, stack := words(long); len(stack) > maxStack || !strings.HasPrefix(stack, "panic: no\n\ngoroutine 1") || !strings.HasSuffix(stack, "+0x1") && !strings.HasSuffix(stack, "(...)") {
		t.Errorf("of a long stack: %q", stack)
	}
	if _, stack := words(strings.Repeat("a line\n", 1000) + "the end\n"); len(stack) > maxStack || !strings.HasPrefix(stack, "a line\n") || !strings.HasSuffix(stack, "the end") {
		t.Errorf("without one: %q", stack)
	}
}
