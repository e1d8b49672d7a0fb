package logs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
)

var statusOptions = StatusOptions{Owner: KeepOwner}

func TestTheLastStatusIsRead(t *testing.T) {
	d, path := openDir(t)
	if _, err := d.ReadStatus("e1"); !errors.Is(err, ErrNotExist) || !errdefs.IsNotFound(err) {
		t.Fatalf("before the first status: %v, want ErrNotExist", err)
	}
	for i, content := range []string{"running", "", "exited", strings.Repeat("x", MaxStatus), "short again"} {
		opt := statusOptions
		opt.NoSync = i%2 == 0
		must(t, d.WriteStatus("e1", []byte(content), opt))
		got, err := d.ReadStatus("e1")
		must(t, err)
		if string(got) != content {
			t.Errorf("read %d bytes, want the %d of status %d", len(got), len(content), i)
		}
	}
	entries, err := os.ReadDir(path)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("%d files, want the status alone", len(entries))
	}
	if err := d.WriteStatus("e1", make([]byte, MaxStatus+1), statusOptions); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a status over the limit: %v, want InvalidArgument", err)
	}
}

func TestALaterStatusTakesNoRoomOnTheDisk(t *testing.T) {
	d, path := openDir(t)
	must(t, d.WriteStatus("e1", []byte("running"), statusOptions))
	before, err := os.Stat(filepath.Join(path, StatusName("e1")))
	must(t, err)
	for i := range 5 {
		must(t, d.WriteStatus("e1", bytes.Repeat([]byte("x"), slotSpare-i), statusOptions))
	}
	after, err := os.Stat(filepath.Join(path, StatusName("e1")))
	must(t, err)
	if !os.SameFile(before, after) || after.Size() != 4096 {
		t.Errorf("the file was replaced or has grown to %d bytes", after.Size())
	}
}

// A crash can leave any part of a write on the disk, in any order.
func TestATornStatusLeavesTheOneBefore(t *testing.T) {
	d, path := openDir(t)
	must(t, d.WriteStatus("e1", []byte("first"), statusOptions))
	must(t, d.WriteStatus("e1", []byte("second"), statusOptions))
	before := readFile(t, path, StatusName("e1"))
	must(t, d.WriteStatus("e1", []byte("third and longer"), statusOptions))
	after := readFile(t, path, StatusName("e1"))

	for cut := range len("third and longer") + statusHeader + 1 {
		head := append(bytes.Clone(after[:cut]), before[cut:]...)
		tail := append(bytes.Clone(before[:cut]), after[cut:]...)
		for name, torn := range map[string][]byte{"head": head, "tail": tail} {
			writeFile(t, path, StatusName("e1"), torn)
			got, err := d.ReadStatus("e1")
			want := "second"
			if bytes.Equal(torn, after) {
				want = "third and longer"
			}
			if err != nil || string(got) != want {
				t.Fatalf("with the %s of %d bytes: read %q, %v, want %q", name, cut, got, err, want)
			}
		}
	}
}

func TestAStatusFileWithoutAStatusIsDamagedAndIsReplaced(t *testing.T) {
	d, path := openDir(t)
	name := StatusName("e1")
	for _, content := range [][]byte{nil, []byte("x"), make([]byte, 4096), bytes.Repeat([]byte{0xff}, 4096)} {
		writeFile(t, path, name, content)
		if _, err := d.ReadStatus("e1"); !errors.Is(err, ErrDamaged) || !errdefs.IsDataLoss(err) {
			t.Errorf("%d bytes: %v, want ErrDamaged", len(content), err)
		}
		must(t, d.WriteStatus("e1", []byte("mended"), statusOptions))
		if got, err := d.ReadStatus("e1"); err != nil || string(got) != "mended" {
			t.Errorf("after a new status: %q, %v", got, err)
		}
	}
	// An 8 TiB file must not be read.
	must(t, os.Truncate(filepath.Join(path, name), 8<<40))
	if _, err := d.ReadStatus("e1"); !errors.Is(err, ErrDamaged) {
		t.Errorf("8 TiB: %v, want ErrDamaged", err)
	}
}

func TestAReaderOfTheStatusNeverSeesHalfOfOne(t *testing.T) {
	d, _ := openDir(t)
	must(t, d.WriteStatus("e1", []byte(strings.Repeat("0", 900)), statusOptions))
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 500 {
			content := []byte(strings.Repeat(fmt.Sprint(i%10), 900))
			if err := d.WriteStatus("e1", content, StatusOptions{Owner: KeepOwner, NoSync: true}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 500 {
		got, err := d.ReadStatus("e1")
		if err != nil || len(got) != 900 || strings.Trim(string(got), string(got[:1])) != "" {
			t.Errorf("read %q, %v", got, err)
			break
		}
	}
	wg.Wait()
}

func TestAnUnfinishedStatusFileIsSweptAway(t *testing.T) {
	d, path := openDir(t)
	writeFile(t, path, statusTemp("e1"), []byte("left by a crash"))
	must(t, d.WriteStatus("e1", []byte("running"), statusOptions))
	if got, err := d.ReadStatus("e1"); err != nil || string(got) != "running" {
		t.Errorf("read %q, %v", got, err)
	}
}
