package logs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// spareDir opens a directory and makes the spares.
func spareDir(t *testing.T, count int) (*Dir, string) {
	t.Helper()
	d, path := openDir(t)
	d.KeepSpares(count, KeepOwner)
	addSpares(t, d, count)
	return d, path
}

func addSpares(t *testing.T, d *Dir, want int) {
	t.Helper()
	made := 0
	for {
		more, err := d.AddSpare()
		must(t, err)
		if !more {
			break
		}
		made++
	}
	if made != want {
		t.Fatalf("%d spares were made, want %d", made, want)
	}
}

func names(t *testing.T, path string) []string {
	t.Helper()
	entries, err := os.ReadDir(path)
	must(t, err)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestTheFilesOfAnExecAreSparesThatNobodySawBefore(t *testing.T) {
	d, path := spareDir(t, 4)
	if got := names(t, path); got != nil {
		t.Errorf("spares are seen: %v", got)
	}
	inodes := sparesOf(t, d)
	w := create(t, d, "e1", testOptions)
	must(t, d.WriteStatus("e1", []byte("running"), StatusOptions{Owner: KeepOwner, NoSync: true}))
	if d.Spares() != 0 {
		t.Errorf("%d spares were not used", d.Spares())
	}
	writeAll(w, piece{Stdout, "out"}, piece{Stderr, "err"})
	must(t, w.Sync())
	must(t, w.Close())
	must(t, d.WriteStatus("e1", []byte("exited"), statusOptions))

	want := []string{IndexName("e1"), StatusName("e1"), StderrName("e1"), StdoutName("e1")}
	if got := names(t, path); !slices.Equal(got, want) {
		t.Errorf("the directory holds %v, want %v", got, want)
	}
	for _, name := range want {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(path, name), &st))
		if !slices.Contains(inodes, st.Ino) || st.Mode != unix.S_IFREG|0o600 {
			t.Errorf("%s is inode %d with mode %o; the spares were %v", name, st.Ino, st.Mode, inodes)
		}
	}
	if got, err := d.ReadStatus("e1"); err != nil || string(got) != "exited" {
		t.Errorf("the status is %q, %v", got, err)
	}
	r := open(t, d, "e1", Cursor{})
	defer func() { _ = r.Close() }()
	if got := drain(t, r, 10); !slices.Equal(got, []piece{{Stdout, "out"}, {Stderr, "err"}}) || r.Notice() != "" {
		t.Errorf("read %v, notice %q", got, r.Notice())
	}
	addSpares(t, d, 4)
}

// sparesOf returns the inodes of the spares, and checks that they have no name.
func sparesOf(t *testing.T, d *Dir) []uint64 {
	t.Helper()
	var inodes []uint64
	for range d.Spares() {
		f := <-d.spares
		var st unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &st))
		if st.Nlink != 0 || st.Size != 0 {
			t.Errorf("a spare has %d names and %d bytes", st.Nlink, st.Size)
		}
		inodes = append(inodes, st.Ino)
		d.spares <- f
	}
	return inodes
}

func TestASpareReplacesNothing(t *testing.T) {
	for kind, put := range hostile {
		if kind == "socket" {
			continue // the path is too long for a socket
		}
		t.Run(kind, func(t *testing.T) {
			d, path := spareDir(t, 4)
			victim := filepath.Join(t.TempDir(), "victim")
			must(t, os.WriteFile(victim, []byte("victim"), 0o600))
			must(t, put(filepath.Join(path, StdoutName("e1")), victim))
			must(t, put(filepath.Join(path, StatusName("e2")), victim))
			before := names(t, path)
			if _, err := d.Create("e1", testOptions); !errdefs.IsAlreadyExists(err) {
				t.Errorf("Create: %v, want AlreadyExists", err)
			}
			if done, err := d.firstStatus(StatusName("e2"), []byte("x"), statusOptions); done || err != nil {
				t.Errorf("firstStatus: %v, %v", done, err)
			}
			if got := names(t, path); !slices.Equal(got, before) {
				t.Errorf("the directory holds %v, want %v", got, before)
			}
			if got, err := os.ReadFile(victim); err != nil || string(got) != "victim" {
				t.Errorf("the victim now holds %q, %v", got, err)
			}
		})
	}
}

func TestWithoutAFittingSpareFilesAreMade(t *testing.T) {
	d, _ := spareDir(t, 3)
	mine := Owner{UID: os.Getuid(), GID: os.Getgid()} // the same owner as that of the spares, written differently
	must(t, create(t, d, "e1", WriterOptions{Owner: mine}).Close())
	if d.Spares() != 3 {
		t.Error("a spare was taken for another owner")
	}
	for _, id := range []string{"e2", "e3"} { // there are spares for the first only
		w := create(t, d, id, testOptions)
		writeAll(w, piece{Stdout, id})
		must(t, w.Close())
		must(t, d.WriteStatus(id, []byte(id), statusOptions))
		if got, err := d.ReadStatus(id); err != nil || string(got) != id {
			t.Errorf("status %q, %v", got, err)
		}
		if got := drain(t, open(t, d, id, Cursor{}), 10); !slices.Equal(got, []piece{{Stdout, id}}) {
			t.Errorf("read %v", got)
		}
	}
}

func TestAFileInThePlaceOfANamedSpareIsNotWritten(t *testing.T) {
	d, path := spareDir(t, 1)
	f := <-d.spares
	defer func() { _ = f.Close() }()
	must(t, d.nameSpare(f, "x"))
	must(t, os.Remove(filepath.Join(path, "x")))
	writeFile(t, path, "x", nil)
	if _, err := d.reopenSpare(f, "x"); !errors.Is(err, ErrTampered) {
		t.Errorf("reopenSpare: %v, want ErrTampered", err)
	}
	if got := names(t, path); got != nil {
		t.Errorf("left behind: %v", got)
	}
}

// Linux requires a capability to name a file by its descriptor alone; since 6.10 only if
// other credentials have opened it.
func TestASpareIsNamedWithoutAnyCapability(t *testing.T) {
	d, path := spareDir(t, 1)
	f := <-d.spares
	defer func() { _ = f.Close() }()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // permanently: the thread ends with the goroutine
		result <- errors.Join(dropSearch(), d.nameSpare(f, "x"))
	}()
	must(t, <-result)
	if got := names(t, path); !slices.Equal(got, []string{"x"}) {
		t.Errorf("the directory holds %v", got)
	}
}

// dropSearch gives the thread new credentials without that capability.
func dropSearch() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_DAC_READ_SEARCH
	return unix.Capset(&header, &data[0])
}

func TestAFileSystemThatKnowsNoNamelessFilesGivesNoSpares(t *testing.T) {
	d, err := OpenDir("/proc")
	must(t, err)
	d.KeepSpares(1, KeepOwner)
	if more, err := d.AddSpare(); more || err == nil || d.Spares() != 0 {
		t.Errorf("AddSpare: %v, %v; %d spares", more, err, d.Spares())
	}
	must(t, d.Close())
}

func TestCloseFreesTheSpares(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	must(t, err)
	d.KeepSpares(2, KeepOwner)
	addSpares(t, d, 2)
	spare := <-d.spares
	d.spares <- spare
	must(t, d.Close())
	if _, err := spare.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a spare is open after Close: %v", err)
	}
	must(t, os.Remove(path))
}

// A status that is longer than a file of the usual size also fits into a spare.
func TestASpareHoldsAStatusOfAnySize(t *testing.T) {
	d, _ := spareDir(t, 1)
	content := bytes.Repeat([]byte("s"), MaxStatus)
	must(t, d.WriteStatus("e1", content, statusOptions))
	must(t, d.WriteStatus("e1", content[1:], statusOptions))
	if got, err := d.ReadStatus("e1"); err != nil || !bytes.Equal(got, content[1:]) || d.Spares() != 0 {
		t.Errorf("%d bytes, %v; %d spares", len(got), err, d.Spares())
	}
}

func TestGroupAccessHoldsForEveryNewFile(t *testing.T) {
	d, path := openDir(t)
	owner := KeepOwner
	owner.GroupAccess = true
	old := unix.Umask(0o002) // a folder with an access control list ignores it
	defer unix.Umask(old)
	d.KeepSpares(1, owner)
	_, err := d.AddSpare()
	must(t, err)
	options := testOptions
	options.Owner = owner
	must(t, create(t, d, "e1", options).Close())
	must(t, d.WriteStatus("e1", []byte("x"), StatusOptions{Owner: owner, NoSync: true}))
	journal, err := d.CreateJournal("e1", 1, nil, owner)
	must(t, err)
	must(t, journal.Close())
	beat, err := d.CreateBeat("e1", owner)
	must(t, err)
	must(t, beat.Close())
	for _, suffix := range Suffixes() {
		info, err := os.Stat(filepath.Join(path, "e1"+suffix))
		must(t, err)
		if info.Mode() != 0o660 {
			t.Errorf("%s has the mode %v", info.Name(), info.Mode())
		}
	}
}

func TestOnlyValidStatusNamesAreListed(t *testing.T) {
	d, path := openDir(t)
	for _, name := range []string{"e1.status", "e2.status", "e3.index", ".e4.status", ".status", "a b.status", "e5.status.tmp", "e6.stdout.log"} {
		must(t, os.WriteFile(filepath.Join(path, name), nil, 0o600))
	}
	must(t, os.Mkdir(filepath.Join(path, "tree.status"), 0o700))
	must(t, os.Symlink("/etc/passwd", filepath.Join(path, "link.status")))
	for range 2 { // a list begins at the beginning
		list, more, err := d.ExecIDs(t.Context(), 10)
		must(t, err)
		slices.Sort(list)
		if more || !slices.Equal(list, []string{"e1", "e2", "link", "tree"}) {
			t.Errorf("listed %q, more %v", list, more)
		}
	}
	for _, id := range []string{"link", "tree"} {
		if _, err := d.ReadStatus(id); !errors.Is(err, ErrTampered) {
			t.Errorf("reading %s gives %v, want ErrTampered", id, err)
		}
	}
}

func TestAListOfExecsIsBounded(t *testing.T) {
	d, path := openDir(t)
	for i := range 5 {
		must(t, os.WriteFile(filepath.Join(path, StatusName("e"+strconv.Itoa(i))), nil, 0o600))
	}
	if list, more, err := d.ExecIDs(t.Context(), 5); err != nil || more || len(list) != 5 {
		t.Errorf("of 5 it lists %d, more %v, error %v", len(list), more, err)
	}
	if list, more, err := d.ExecIDs(t.Context(), 4); err != nil || !more || len(list) != 4 {
		t.Errorf("with limit 4 it lists %d, more %v, error %v", len(list), more, err)
	}
	for i := range 2 * namesPerExec { // names that are no status files are bounded too
		must(t, os.WriteFile(filepath.Join(path, "junk"+strconv.Itoa(i)), nil, 0o600))
	}
	if list, more, err := d.ExecIDs(t.Context(), 1); err != nil || !more || len(list) > 1 {
		t.Errorf("with limit 1 it lists %d, more %v, error %v", len(list), more, err)
	}
}
