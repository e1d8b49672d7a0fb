package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// uids returns the real, effective and saved user id of a thread of this process.
func uids(t *testing.T, tid int) (real, effective, saved string) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", tid))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(status), "\nUid:")
	fields := strings.Fields(line)
	return fields[0], fields[1], fields[2]
}

// An instance of root counts for root only if this process may not take another id.
func TestInstancesCountForAnIDOfTheirOwn(t *testing.T) {
	const flags = unix.IN_CLOEXEC | unix.IN_NONBLOCK
	var all []int
	defer func() {
		for _, fd := range all {
			_ = unix.Close(fd)
		}
	}()
	for {
		fd, err := InotifyInit(flags)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fd)
	}
	fd, err := unix.InotifyInit1(flags)
	if err == nil {
		all = append(all, fd)
	}
	if root := os.Geteuid() == 0; root != (err == nil) {
		t.Errorf("after %d instances of its own, root is %v and one more of the process' user gives %v", len(all), root, err)
	}
	for _, entry := range tasks(t) {
		if _, effective, saved := uids(t, entry); effective != saved {
			t.Errorf("a thread was left with the effective id %s", effective)
		}
	}
}

func TestOnlyTheRealIDOfOneThreadChanges(t *testing.T) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		SetRealUser()
		real, effective, saved := uids(t, unix.Gettid())
		user := fmt.Sprint(os.Geteuid())
		if want := fmt.Sprint(own()); user == "0" && real != want || user != "0" && real != user || effective != user || saved != user {
			t.Errorf("the thread has the ids %s, %s and %s", real, effective, saved)
		}
	}()
	<-ended
}

func tasks(t *testing.T) (tids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		var tid int
		if _, err := fmt.Sscan(entry.Name(), &tid); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}
