package retention

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/agbox/agbox/internal/process"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

func TestOpenFilesWithoutNamesAreCountedByTheirMount(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	mount := mountOf(os.Getpid(), strconv.Itoa(int(f.Fd())))
	if mount == "" {
		t.Fatal("the mount of a descriptor is not found")
	}
	count := func(mount string) (sum uint64) {
		for _, size := range nameless(os.Getpid(), map[string]bool{mount: true}) {
			sum += size
		}
		return sum
	}
	before := count(mount)
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if got := count(mount) - before; got != 1<<20 {
		t.Errorf("%d bytes are held, want 1 MiB", got)
	}
	if got := count("0"); got != 0 {
		t.Errorf("%d bytes are held in another mount", got)
	}
}

func TestAnEndedFirstProcessHoldsNothing(t *testing.T) {
	note := func(id process.Identity) string {
		raw, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "init.json")
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	own := process.Identify(os.Getpid())
	if pid, err := firstProcess(note(own)); err != nil || pid != own.PID {
		t.Errorf("the living process is %d, %v", pid, err)
	}
	own.Start++
	if _, err := firstProcess(note(own)); err == nil {
		t.Error("another process with that pid is taken for it")
	}
}

func TestDescriptorsAreLookedAtWhenTheDiskHasShrunk(t *testing.T) {
	b := newBench(t)
	free := freeSpace{bytes: 10 << 30} // other tests change what the disk has
	for _, row := range []struct {
		looked int64 // what was free at the last look, from what is free now
		want   bool
	}{{-1 << 30, false}, {0, false}, {heldAfter * 3 / 4, false}, {heldAfter * 5 / 4, true}} {
		b.looked = freeSpace{bytes: uint64(int64(free.bytes) + row.looked)}
		if got := b.shrunkTo(free); got != row.want {
			t.Errorf("%d bytes less are free: looked %v", row.looked, got)
		}
	}
}

func TestAPassLooksForTheProcessesOfAllSandboxesOnce(t *testing.T) {
	b := newBench(t)
	for _, id := range []string{"b", "c"} {
		b.add(id, &guestv1.BootConfig{MaxFolderBytes: 1 << 20, MaxFolderFiles: 20})
	}
	reads := 0
	b.processes = func() map[string][]int {
		reads++
		return byGroups()
	}
	for pass, want := range []int{1, 1, 2} {
		if pass%2 == 0 {
			b.looked = freeSpace{bytes: 1 << 62} // the disk has lost much since then
		}
		b.Pass(t.Context())
		if reads != want {
			t.Errorf("after pass %d they were looked for %d times, want %d", pass, reads, want)
		}
	}
}

func TestProcessesAreFoundByTheirGroups(t *testing.T) {
	groups := groupsOf(os.Getpid())
	if groups == "" {
		groups = groupsOf(1)
	}
	if groups != "" && len(byGroups()[groups]) == 0 {
		t.Errorf("no process is in %q", groups)
	}
	for groups, pids := range byGroups() {
		if got := groupsOf(pids[0]); got != groups && got != "" {
			t.Errorf("process %d is in %q, and was listed for %q", pids[0], got, groups)
		}
	}
}
