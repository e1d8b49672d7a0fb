package files_test

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime/guest"
)

func TestAFileIsReplacedOnlyIfItIsTheExpectedOne(t *testing.T) {
	d := newFixture(t)
	at := filepath.Join(d.root, "f")
	sum := sha256.Sum256([]byte("old"))
	write := func(meanwhile func()) error {
		t.Helper()
		req := d.write("f")
		req.GetWrite().ExpectedSha256 = sum[:]
		tr, err := guest.DialTransfer(t.Context(), d.link, anyone, req)
		if err != nil {
			return err
		}
		defer tr.Close()
		d.must(tr.Push([]byte("new")))
		meanwhile()
		_, err = tr.Finish()
		return err
	}
	nothing := func() {}
	changed := func(what string, err error, want string) {
		t.Helper()
		if fault.ReasonOf(err) != agboxv1.ErrorReason_FILE_CHANGED {
			t.Errorf("%s: %v", what, err)
		}
		if got, _ := os.ReadFile(at); string(got) != want {
			t.Errorf("%s: the file has %q", what, got)
		}
		if all, _ := os.ReadDir(d.root); len(all) > 2 {
			t.Errorf("%s: left %v", what, all)
		}
	}
	put := func(text string) { d.must(os.WriteFile(at, []byte(text), 0o600)) }
	changed("none", write(nothing), "")
	put("other")
	changed("another", write(nothing), "other")
	put("old")
	changed("changed meanwhile", write(func() { put("theirs") }), "theirs")
	put("old")
	changed("removed meanwhile", write(func() { d.must(os.Remove(at)) }), "")
	d.must(os.WriteFile(filepath.Join(d.root, "to"), []byte("old"), 0o600))
	put("old")
	changed("a link meanwhile", write(func() { d.must(os.Remove(at)); d.must(os.Symlink("to", at)) }), "old")
	if err := write(nothing); fault.ReasonOf(err) != agboxv1.ErrorReason_FILE_NOT_REGULAR {
		t.Errorf("a link: %v", err)
	}
	d.must(os.Remove(at))
	put("old")
	if err := write(nothing); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(at); err != nil || string(got) != "new" {
		t.Errorf("the expected one became %q, %v", got, err)
	}
}

// A process in the sandbox can make anything of the file before it is replaced.
func TestAFIFOInThePlaceOfTheExpectedFileIsNotRead(t *testing.T) {
	d := newFixture(t)
	at, sum := filepath.Join(d.root, "f"), sha256.Sum256([]byte("old"))
	d.must(os.WriteFile(at, []byte("old"), 0o600))
	req := d.write("f")
	req.GetWrite().ExpectedSha256 = sum[:]
	tr, err := guest.DialTransfer(t.Context(), d.link, anyone, req)
	d.must(err)
	defer tr.Close()
	d.must(os.Remove(at))
	d.must(unix.Mkfifo(at, 0o600))
	held, err := os.OpenFile(at, os.O_RDWR, 0)
	d.must(err)
	defer held.Close()
	if _, err := tr.Finish(); fault.ReasonOf(err) != agboxv1.ErrorReason_FILE_CHANGED {
		t.Errorf("a FIFO: %v", err)
	}
}
