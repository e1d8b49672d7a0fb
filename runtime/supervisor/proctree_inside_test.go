package supervisor

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestFieldsOfAProcessAreCountedFromItsName(t *testing.T) {
	rest := " S 7 8 9 0 -1 4194560 5 6 7 8 100 200 300 400 20 0 1 0 12345 9000 33"
	for _, name := range []string{"sh", "a b", "x) R 1 2 3 (y", ")))", ""} {
		for _, tail := range []string{"", " ", " 18446744073709551615 1 2\n"} {
			f, ok := fieldsOfStat([]byte("42 (" + name + ")" + rest + tail))
			if !ok {
				t.Errorf("the name %q: fields are missing", name)
			}
			for i, want := range map[int]string{statState: "S", statParent: "7", statSession: "9", statUserTime: "100", statReapedTime: "400", statStart: "12345", statResident: "33"} {
				if string(f[i]) != want {
					t.Errorf("the name %q: field %d is %s, want %s", name, i, f[i], want)
				}
			}
		}
	}
	for _, short := range []string{"", "42", "42 (sh", "42 (sh)", "42 (sh)" + strings.TrimSuffix(rest, " 33")} {
		if f, ok := fieldsOfStat([]byte(short)); ok {
			t.Errorf("%q has the fields %q", short, f)
		}
	}
}

func TestAProcessIsFoundAmongAll(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	found := map[int]proc{}
	for _, p := range processes() {
		found[p.pid] = p
	}
	if child := found[cmd.Process.Pid]; child.parent != os.Getpid() || child.start == 0 {
		t.Errorf("the child is read as %+v", child)
	}
	// Of a program that was executed a moment ago, the kernel may not have counted a page yet.
	if self := found[os.Getpid()]; self.parent != os.Getppid() || self.memory == 0 {
		t.Errorf("the test itself is read as %+v", self)
	}
}

// Each exec has the memory of its tree sampled, and each sample reads all processes.
func TestReadingAProcessMakesLittleGarbage(t *testing.T) {
	self, buf := os.Getpid(), make([]byte, statSize)
	const names = 4 // of the file: its number, joined, and for the kernel
	if n := testing.AllocsPerRun(100, func() { _, _, _ = readStat(self, buf) }); n > names {
		t.Errorf("it allocates %v times, want at most %d", n, names)
	}
}
