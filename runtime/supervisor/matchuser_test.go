package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

const (
	usersBefore  = "root:x:0:0::/root:/bin/sh\nother:x:4500:4500::/:/bin/sh\nagent:x:4100:4200:a:HOME:/bin/sh\nlast:x:9:9::/:/bin/sh"
	groupsBefore = "root:x:0:\nagent:x:4200:other\ndisk:x:4700:\n"
)

// matching is a container with a home on a volume and a folder of an owner.
type matching struct {
	dir, home, folder string
	cfg               Config
}

func newMatching(t *testing.T, uid, gid int) *matching {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root changes owners")
	}
	dir := t.TempDir()
	m := &matching{dir: dir, home: filepath.Join(dir, "home"), folder: filepath.Join(dir, "folder")}
	m.cfg = Config{
		Passwd: filepath.Join(dir, "passwd"), Group: filepath.Join(dir, "group"),
		Boot: &guestv1.BootConfig{User: "agent", MatchUser: m.folder, Volumes: []string{m.home}},
	}
	for _, err := range []error{
		os.MkdirAll(filepath.Join(m.home, "a/b"), 0o700), os.Mkdir(m.folder, 0o700), os.Chown(m.folder, uid, gid),
		os.WriteFile(filepath.Join(m.home, "a/b/own"), nil, 0o600), os.WriteFile(filepath.Join(m.home, "roots"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "beside"), nil, 0o600), os.Symlink("../beside", filepath.Join(m.home, "link")),
		unix.Mkfifo(filepath.Join(m.home, "fifo"), 0o600),
		os.WriteFile(m.cfg.Passwd, []byte(m.passwd(usersBefore)), 0o644), os.WriteFile(m.cfg.Group, []byte(groupsBefore), 0o640),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"home", "home/a", "home/a/b", "home/a/b/own", "home/link", "home/fifo", "beside"} {
		if err := os.Lchown(filepath.Join(dir, name), 4100, 4200); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *matching) passwd(text string) string { return strings.ReplaceAll(text, "HOME", m.home) }

// wants compares the user files and the owners.
func (m *matching) wants(t *testing.T, passwd, group string, owners map[string]userIDs) {
	t.Helper()
	for path, want := range map[string]string{m.cfg.Passwd: m.passwd(passwd), m.cfg.Group: group} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", path, got, err, want)
		}
	}
	for name, want := range owners {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(m.dir, name), &st); err != nil || int(st.Uid) != want.uid || int(st.Gid) != want.gid {
			t.Errorf("%s belongs to %d:%d, %v; want %v", name, st.Uid, st.Gid, err, want)
		}
	}
}

func (m *matching) match(t *testing.T) {
	t.Helper()
	if err := MatchUser(m.cfg); err != nil {
		t.Error(err)
	}
}

func TestTheUserGetsTheIDsOfTheFoldersOwner(t *testing.T) {
	m := newMatching(t, 4321, 4322)
	given := userIDs{4321, 4322}
	owners := map[string]userIDs{
		"home": given, "home/a": given, "home/a/b": given, "home/a/b/own": given, "home/link": given, "home/fifo": given,
		"home/roots": {0, 0}, "beside": {4100, 4200}, "group": {0, 0},
	}
	for range 2 {
		m.match(t)
		m.wants(t, usersGiven, groupsGiven, owners)
	}
	if st, err := os.Stat(m.cfg.Group); err != nil || st.Mode() != 0o640 {
		t.Errorf("the mode is %v, %v", st.Mode(), err)
	}
}

func TestAnIDThatIsTakenIsSharedAndAGroupIsNot(t *testing.T) {
	m := newMatching(t, 4500, 4700)
	m.match(t)
	m.wants(t, "root:x:0:0::/root:/bin/sh\nagent:x:4500:4200:a:HOME:/bin/sh\nother:x:4500:4500::/:/bin/sh\nlast:x:9:9::/:/bin/sh", groupsBefore,
		map[string]userIDs{"home": {4500, 4200}})
	m = newMatching(t, 9, 0)
	m.match(t)
	m.wants(t, "root:x:0:0::/root:/bin/sh\nother:x:4500:4500::/:/bin/sh\nagent:x:9:4200:a:HOME:/bin/sh\nlast:x:9:9::/:/bin/sh", groupsBefore, nil)
}

func TestTheUserKeepsItsIDs(t *testing.T) {
	for name, change := range map[string]func(m *matching){
		"of a folder of root":         func(m *matching) { _ = os.Chown(m.folder, 0, 0) },
		"of a folder without an id":   func(m *matching) { _ = os.Chown(m.folder, unmapped, unmapped) },
		"if it is root":               func(m *matching) { m.cfg.Boot.User = "root" },
		"if it is a number":           func(m *matching) { m.cfg.Boot.User = "4100:4200" },
		"if it is nobody's":           func(m *matching) { m.cfg.Boot.User = "who" },
		"if nothing is to be matched": func(m *matching) { m.cfg.Boot.MatchUser = "" },
	} {
		m := newMatching(t, 4321, 4322)
		change(m)
		t.Run(name, func(t *testing.T) {
			m.match(t)
			m.wants(t, usersBefore, groupsBefore, map[string]userIDs{"home": {4100, 4200}})
		})
	}
}

func TestUserFilesOfAHostileImageAreLeftAlone(t *testing.T) {
	for name, passwd := range map[string]string{
		"short": "agent\nagent:x\nagent:x:1\n", "no numbers": "agent:x:a:b::/:/bin/sh\n", "root by another name": "agent:x:0:0::/:/bin/sh\n", "empty": "",
		"huge numbers": "agent:x:99999999999:4::/:/bin/sh\n",
	} {
		m := newMatching(t, 4321, 4322)
		if err := os.WriteFile(m.cfg.Passwd, []byte(passwd), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			m.match(t)
			m.wants(t, passwd, groupsBefore, nil)
		})
	}
	m := newMatching(t, 4321, 4322)
	real := filepath.Join(m.dir, "real")
	if err := os.Rename(m.cfg.Passwd, real); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, m.cfg.Passwd); err != nil {
		t.Fatal(err)
	}
	if err := MatchUser(m.cfg); err == nil {
		t.Error("a link was replaced")
	}
	if got, err := os.ReadFile(real); err != nil || string(got) != m.passwd(usersBefore) {
		t.Errorf("behind the link is %q, %v", got, err)
	}
	var home unix.Stat_t
	if err := unix.Stat(m.home, &home); err != nil || home.Uid != 4100 || home.Gid != 4200 {
		t.Errorf("the home was given to %d:%d, %v", home.Uid, home.Gid, err)
	}
	if left, err := filepath.Glob(filepath.Join(m.dir, ".*.agbox")); err != nil || len(left) > 0 {
		t.Errorf("%q is left, %v", left, err)
	}
}

func TestALinkInTheWorkspaceGivesNoIDs(t *testing.T) {
	m := newMatching(t, 4321, 4322)
	m.cfg.Boot.MatchUser = filepath.Join(m.dir, "way")
	if err := os.Symlink(m.folder, m.cfg.Boot.MatchUser); err != nil {
		t.Fatal(err)
	}
	if err := MatchUser(m.cfg); err == nil {
		t.Error("a link was followed")
	}
	m.wants(t, usersBefore, groupsBefore, map[string]userIDs{"home": {4100, 4200}})
}

func TestAUserOfGroupRootStaysInIt(t *testing.T) {
	m := newMatching(t, 4321, 4322)
	if err := os.WriteFile(m.cfg.Passwd, []byte("agent:x:4100:0::/:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.match(t)
	m.wants(t, "agent:x:4321:0::/:/bin/sh\n", groupsBefore, nil)
}

func TestAStartThatWasKilledBetweenTheUserFilesIsCompleted(t *testing.T) {
	m := newMatching(t, 4321, 4322)
	after := strings.Replace(groupsBefore, "4200", "4322", 1)
	if err := os.WriteFile(m.cfg.Group, []byte(after), 0o640); err != nil {
		t.Fatal(err)
	}
	m.match(t)
	m.wants(t, strings.Replace(usersBefore, "4100:4200", "4321:4322", 1), after, map[string]userIDs{"home": {4321, 4322}})
}

func TestWhatIsMountedInTheHomeKeepsItsOwner(t *testing.T) {
	m := newMatching(t, 4321, 4322)
	mounted := filepath.Join(m.home, "a")
	if err := unix.Mount(mounted, mounted, "", unix.MS_BIND, ""); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	m.match(t)
	m.wants(t, strings.Replace(usersBefore, "4100:4200", "4321:4322", 1), strings.Replace(groupsBefore, "4200", "4322", 1),
		map[string]userIDs{"home": {4321, 4322}, "home/a": {4100, 4200}, "home/a/b/own": {4100, 4200}})
}

const (
	usersGiven  = "root:x:0:0::/root:/bin/sh\nother:x:4500:4500::/:/bin/sh\nagent:x:4321:4322:a:HOME:/bin/sh\nlast:x:9:9::/:/bin/sh"
	groupsGiven = "root:x:0:\nagent:x:4322:other\ndisk:x:4700:\n"
)

// The time of a start may not suffice for a large home.
func TestAHomeThatIsNotFinishedInTimeIsFinishedByLaterStarts(t *testing.T) {
	m := newMatching(t, 4321, 4322)
	volume := filepath.Join(m.dir, "home/v")
	for range 2 { // the second goes on by the note, and gives a volume before it finds that it has no time either
		if err := matchUser(m.cfg, time.Now()); !errors.Is(err, ErrHomeUnfinished) {
			t.Errorf("without time: %v", err)
		}
		m.wants(t, usersGiven, groupsGiven, map[string]userIDs{"home": {4321, 4322}, "home/a/b/own": {4100, 4200}})
		m.cfg.Boot.Volumes = append(m.cfg.Boot.Volumes, volume)
		if err := errors.Join(os.MkdirAll(volume, 0o700), os.Lchown(volume, 4100, 4200)); err != nil {
			t.Fatal(err)
		}
	}
	m.match(t)
	m.wants(t, usersGiven, groupsGiven, map[string]userIDs{"home/a/b/own": {4321, 4322}, "home/roots": {0, 0}, "beside": {4100, 4200}})
	m.wantsNoNote(t)
}

// A start looks at what the earlier ones have given before it finds more.
func TestAHomeThatIsTooLargeForAStartIsLeft(t *testing.T) {
	m := newMatching(t, 4321, 4322)
	for i, want := range []error{ErrHomeUnfinished, ErrHomeLeft, nil} {
		if err := matchUser(m.cfg, time.Now()); !errors.Is(err, want) {
			t.Errorf("start %d, without time: %v, want %v", i, err, want)
		}
		m.wants(t, usersGiven, groupsGiven, map[string]userIDs{"home": {4321, 4322}, "home/a/b/own": {4100, 4200}})
	}
	m.wantsNoNote(t)
}

// wantsNoNote wants nothing beside the user files.
func (m *matching) wantsNoNote(t *testing.T) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(m.dir, ".*agbox*")); err != nil || len(left) > 0 {
		t.Errorf("%q is left, %v", left, err)
	}
}

// A sandbox can write the note: what is in it never gives away what is of root.
func TestAForgedNoteOfAHomeGivesNothingOfRoot(t *testing.T) {
	for _, note := range []string{"0:0\n", "0:4200", "x", ":", "4100", "-1:-1", strings.Repeat("1", 2*maxUnfinished)} {
		m := newMatching(t, 4321, 4322)
		m.match(t)
		if err := os.WriteFile(unfinishedIn(m.cfg.Passwd), []byte(note), 0o600); err != nil {
			t.Fatal(err)
		}
		m.match(t)
		m.wants(t, usersGiven, groupsGiven, map[string]userIDs{"home/roots": {0, 0}, "home/a": {4321, 4322}})
		if _, err := os.Lstat(unfinishedIn(m.cfg.Passwd)); !os.IsNotExist(err) {
			t.Errorf("%q stays: %v", note, err)
		}
	}
}

func TestAVolumeInTheHomeThatIsReadOnlyKeepsItsOwner(t *testing.T) {
	m := newMatching(t, 4321, 4322)
	volume := filepath.Join(m.home, "a")
	m.cfg.Boot.Volumes = append(m.cfg.Boot.Volumes, volume)
	if err := unix.Mount(volume, volume, "", unix.MS_BIND, ""); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(volume, unix.MNT_DETACH) })
	if err := unix.Mount("", volume, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	m.match(t)
	m.wants(t, usersGiven, groupsGiven, map[string]userIDs{"home": {4321, 4322}, "home/a": {4100, 4200}})
}

// After a power cut, a rename of a file that was not synced may leave an empty passwd.
func TestAUserFileThatCannotBeSyncedReplacesNothing(t *testing.T) {
	m := newMatching(t, 4321, 4322)
	var cannot, failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine, and its filter with it
		if cannot = failFsync(); cannot == nil {
			failed = MatchUser(m.cfg)
		}
	}()
	<-done
	if cannot != nil || !errors.Is(failed, unix.EIO) {
		t.Fatalf("the sync fails with %v (%v)", failed, cannot)
	}
	m.wants(t, usersBefore, groupsBefore, map[string]userIDs{"home": {4100, 4200}})
}

// failFsync makes fsync of this thread fail with EIO.
func failFsync() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
}
