package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// bulky returns an update that needs new pages for about size bytes.
func bulky(id string, size int) func(tx *Tx) error {
	return func(tx *Tx) error {
		if err := tx.ReserveSandbox(id, testTime); err != nil {
			return err
		}
		return tx.PutSandboxConfig(id, &agboxv1.CreateSpec{Image: strings.Repeat("i", size)})
	}
}

// fillUp writes until a write fails. It returns that error and the last accepted id.
func fillUp(s *Store, size int) (last string, err error) {
	for i := range 10_000 {
		id := numbered("s", i)
		if err := s.Update(context.Background(), bulky(id, size)); err != nil {
			return last, err
		}
		last = id
	}
	return last, errors.New("the disk is never full")
}

// stillReads returns an error if the last accepted id cannot be read after a
// failed write.
func stillReads(s *Store, last string) error {
	return s.View(context.Background(), func(tx *Tx) error {
		if _, ok := tx.SandboxReserved(last); !ok {
			return fmt.Errorf("the accepted %s is gone", last)
		}
		_, err := tx.SandboxConfig(last)
		return err
	})
}

func TestWritesFailOnAFullDiskAndSucceedOnceSpaceIsFree(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("agbox-store-test", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Logf("cannot mount a tmpfs (%v): only TestWritesFailAtAFileSizeLimitAndSucceedOnceItIsLifted tests a full disk", err)
		return
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	filler := filepath.Join(dir, "filler")
	writeFile(t, filler, make([]byte, 2<<20))
	s := mustOpen(t, testOptions(dir))
	last, err := fillUp(s, 60_000)
	f := fault.Of(err)
	if !errors.Is(err, unix.ENOSPC) || !errdefs.IsUnavailable(err) || f == nil ||
		f.Reason != agboxv1.ErrorReason_STORE_FAILED || !strings.Contains(f.Message, "disk space") {
		t.Fatalf("error %v", err)
	}
	for range 3 {
		if err := s.Update(t.Context(), bulky("again", 1<<20)); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("error %v", err)
		}
		if err := stillReads(s, last); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, s, bulky("again", 1<<20))
	closeStore(t, s)
	if err := os.Remove(markerPath(s.path)); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, testOptions(dir)) // runs the check
	if err := errors.Join(stillReads(s, last), stillReads(s, "again")); err != nil {
		t.Fatal(err)
	}
}

// fillUnderLimit does the same with a limit on the file size, which needs no
// privileges. It prints what is wrong.
func fillUnderLimit(args []string) int {
	signal.Ignore(unix.SIGXFSZ)
	s, err := Open(context.Background(), testOptions(args[0]))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_FSIZE, &limit)
	_ = unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: limit.Max})
	last, full := fillUp(s, 60_000)
	if f := fault.Of(full); f == nil || !strings.Contains(f.Message, "disk space") || !errdefs.IsUnavailable(full) {
		fmt.Println("wrong error:", full)
		return 1
	}
	if err := stillReads(s, last); last != "" && err != nil {
		fmt.Println("after the failure:", err)
		return 1
	}
	_ = unix.Setrlimit(unix.RLIMIT_FSIZE, &limit)
	if err := s.Update(context.Background(), bulky("again", 1<<20)); err != nil {
		fmt.Println("after the limit was lifted:", err)
		return 1
	}
	if err := errors.Join(stillReads(s, "again"), s.Close()); err != nil {
		fmt.Println("at the end:", err)
		return 1
	}
	return 0
}

func TestWritesFailAtAFileSizeLimitAndSucceedOnceItIsLifted(t *testing.T) {
	if out, err := child("fill", t.TempDir()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// failSyscall makes a system call of this process fail with EIO from now on. It
// cannot be undone.
func failSyscall(nr uint32) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := filterSyscall(nr, unix.SECCOMP_RET_ERRNO|uint32(unix.EIO), unix.SECCOMP_FILTER_FLAG_TSYNC)
	return err
}

// filterSyscall returns what seccomp returns: with some flags a descriptor.
func filterSyscall(nr, action uint32, flags uintptr) (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: action},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

// failSecondSyscall makes the second call of this thread, to which the caller must be locked,
// fail with EIO, and every later one.
func failSecondSyscall(nr uint32) error {
	fd, err := filterSyscall(nr, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if err != nil {
		return err
	}
	go func() { // ends with the process
		for first := true; ; {
			var call struct { // seccomp_notif
				id         uint64
				pid, flags uint32
				data       [64]byte
			}
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&call))); errno == unix.ENOENT {
				continue // a signal has interrupted the call, which begins again
			} else if errno != 0 {
				panic(errno)
			}
			answer := struct { // seccomp_notif_resp
				id, value uint64
				error     int32
				flags     uint32
			}{id: call.id, error: -int32(unix.EIO)}
			if first {
				answer.error, answer.flags = 0, unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
			}
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer))); errno == unix.ENOENT {
				continue
			} else if errno != 0 {
				panic(errno)
			}
			first = false
		}
	}()
	return nil
}

// readsAfterTheLastSync prints what is wrong with readers of a store whose commit was written
// but for the sync of the page that makes it visible.
func readsAfterTheLastSync(args []string) int {
	ctx := context.Background()
	s, err := Open(ctx, testOptions(args[0]))
	if err == nil {
		err = s.Update(ctx, bulky("before", 1000))
	}
	if err != nil {
		fmt.Println("cannot begin:", err)
		return 1
	}
	var cannot error
	failed := s.Update(ctx, func(tx *Tx) error {
		runtime.LockOSThread() // the writer's goroutine, which commits
		cannot = failSecondSyscall(unix.SYS_FDATASYNC)
		return errors.Join(cannot, tx.ReserveSandbox("during", testTime))
	})
	if cannot != nil || !errors.Is(failed, ErrReadOnly) {
		fmt.Println("the sync did not fail:", cannot, failed)
		return 1
	}
	visible := false
	if err := s.db.View(func(b *bolt.Tx) error { _, visible = (&Tx{bolt: b}).SandboxReserved("during"); return nil }); err != nil || !visible {
		fmt.Println("bbolt does not show the refused transaction:", err)
		return 1
	}
	err = s.View(ctx, func(tx *Tx) error {
		if _, shown := tx.SandboxReserved("during"); shown {
			fmt.Println("a reader gets what was refused")
		}
		return nil
	})
	if f := fault.Of(err); !errors.Is(err, ErrReadOnly) || !errdefs.IsUnavailable(err) || f.Reason != agboxv1.ErrorReason_STORE_FAILED {
		fmt.Println("wrong error of a reader:", err)
		return 1
	}
	if err := s.Close(); err != nil {
		fmt.Println("at the end:", err)
		return 1
	}
	return 0
}

// The last sync of a commit is that of the page that makes it visible, so bbolt shows it.
func TestAReaderNeverSeesATransactionThatWasRefused(t *testing.T) {
	if out, err := child("unsynced", t.TempDir()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// writeWithoutSync prints what is wrong with a store whose fsync fails.
func writeWithoutSync(args []string) int {
	ctx := context.Background()
	s, err := Open(ctx, testOptions(args[0]))
	if err == nil {
		err = s.Update(ctx, bulky("before", 1000))
	}
	if err == nil {
		err = failSyscall(map[string]uint32{"fdatasync": unix.SYS_FDATASYNC, "fsync": unix.SYS_FSYNC}[args[1]])
	}
	if err != nil {
		fmt.Println("cannot begin:", err)
		return 1
	}
	var failed error
	if args[1] == "fsync" { // bbolt calls fsync only when it grows the file
		_, failed = fillUp(s, 1<<20)
	} else {
		failed = s.Update(ctx, bulky("during", 1000))
	}
	again := s.Update(ctx, bulky("after", 1000))
	for _, err := range []error{failed, again} {
		if f := fault.Of(err); !errors.Is(err, ErrReadOnly) || !errdefs.IsUnavailable(err) || f.Reason != agboxv1.ErrorReason_STORE_FAILED {
			fmt.Println("wrong error:", err)
			return 1
		}
	}
	if err := errors.Join(stillReads(s, "before"), s.Close()); err != nil {
		fmt.Println("at the end:", err)
		return 1
	}
	return 0
}

func TestAfterAFailedSyncTheStoreIsReadOnlyUntilTheNextOpen(t *testing.T) {
	for _, call := range []string{"fdatasync", "fsync"} {
		t.Run(call, func(t *testing.T) {
			o := testOptions(t.TempDir())
			if out, err := child("nosync", filepath.Dir(o.Path), call).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			checks := 0
			o.CheckCommand = countCalls(o.CheckCommand, &checks)
			s := mustOpen(t, o)
			if checks != 1 || !isReserved(t, s, "before") || isReserved(t, s, "during") || isReserved(t, s, "after") {
				t.Fatalf("%d checks; before %v, during %v, after %v", checks,
					isReserved(t, s, "before"), isReserved(t, s, "during"), isReserved(t, s, "after"))
			}
			mustUpdate(t, s, bulky("after", 1000))
		})
	}
}
