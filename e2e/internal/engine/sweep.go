package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/process"
)

const (
	// top has the folders of private engines, whose names begin with prefix.
	top, prefix = "/var/tmp", "abe"
	// ownerFile is in the folder and names the process of the tests.
	ownerFile = "owner.json"
)

// swept is once per process.
var swept sync.Once

// own notes this process as the owner of the engine. Where a pid may mean another process to
// others, there is no note, and nobody removes what is left.
func (p *Private) own() error {
	if !process.SeesAll() {
		return nil
	}
	raw, err := json.Marshal(process.Identify(os.Getpid()))
	if err != nil {
		return err
	}
	return os.WriteFile(p.path(ownerFile), raw, 0o600)
}

// sweep removes the engines whose tests were killed: their daemons and containers run on
// without them.
func sweep(t testing.TB) {
	if !process.SeesAll() {
		return
	}
	files, _ := filepath.Glob(filepath.Join(top, prefix+"*", ownerFile))
	for _, file := range files {
		sweepOne(t, file)
	}
}

func sweepOne(t testing.TB, file string) {
	root := filepath.Dir(file)
	var st unix.Stat_t
	if unix.Lstat(root, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return // everybody may write to the folder of folders
	}
	f, err := os.Open(file)
	if err != nil {
		return // it was removed meanwhile
	}
	defer f.Close() // only read
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return // other tests are about to remove it
	}
	var owner process.Identity
	if json.NewDecoder(f).Decode(&owner) != nil || owner.PID <= 0 || owner.Alive() {
		return
	}
	t.Logf("removing the private engine %s of process %d, which is gone", root, owner.PID)
	p := &Private{root: root, netns: filepath.Base(root)}
	p.killAll(t)
	p.removeProcesses(t)
}

// killAll ends everything that runs in the engine: containers after what watches over them.
func (p *Private) killAll(t testing.TB) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); p.killShims(t)+p.killGroups() > 0; <-look.C {
		if time.Now().After(deadline) {
			t.Errorf("processes of the private engine %s do not end", p.root)
			return
		}
	}
}

// killGroups ends what is in the control groups of the engine and returns how many it were.
func (p *Private) killGroups() (killed int) {
	for _, group := range p.groups() {
		raw, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		for _, line := range strings.Fields(string(raw)) {
			if pid, err := strconv.Atoi(line); err == nil && pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				killed++
			}
		}
	}
	return killed
}
