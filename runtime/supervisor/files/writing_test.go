package files_test

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/supervisor/files"
)

func TestWhatIsWrittenBetweenTheComparisonAndTheExchangeIsKept(t *testing.T) {
	d := newFixture(t)
	at := filepath.Join(d.root, "f")
	add := func(line string) {
		f, err := os.OpenFile(at, os.O_WRONLY|os.O_APPEND, 0)
		d.must(err)
		_, err = f.WriteString(line)
		d.must(err)
		d.must(f.Close())
	}
	replace := func(text string) {
		d.must(os.WriteFile(at+"~", []byte(text), 0o600))
		d.must(os.Rename(at+"~", at))
	}
	remove := func() { d.must(os.Remove(at)) }
	nothing := func() {}
	for _, one := range []struct {
		what string
		// meanwhile is done before the exchange, and then before it is undone.
		meanwhile [2]func()
		// want is what the file has then, and kept what the file beside it has.
		want, kept string
	}{
		{"appended", [2]func(){func() { add("1\n") }, nothing}, "old\n1\n", ""},
		{"replaced", [2]func(){func() { replace("theirs\n") }, nothing}, "theirs\n", ""},
		{"removed", [2]func(){remove, nothing}, "", ""},
		{"a folder", [2]func(){func() { remove(); d.must(os.Mkdir(at, 0o700)) }, nothing}, "", ""},
		{"a FIFO", [2]func(){func() { remove(); d.must(unix.Mkfifo(at, 0o600)) }, nothing}, "", ""},
		{"appended twice", [2]func(){func() { add("1\n") }, func() { add("2\n") }}, "old\n1\n", "new\n2\n"},
		{"appended and replaced", [2]func(){func() { add("1\n") }, func() { replace("theirs\n") }}, "old\n1\n", "theirs\n"},
		{"appended and replaced by the same", [2]func(){func() { add("1\n") }, func() { replace("new\n") }}, "old\n1\n", "new\n"},
		{"appended and removed", [2]func(){func() { add("1\n") }, remove}, "old\n1\n", ""},
		{"appended and closed to others", [2]func(){func() { add("1\n") }, func() { d.must(os.Chmod(at, 0)) }}, "old\n1\n", ""},
	} {
		t.Run(one.what, func(t *testing.T) {
			d.must(os.WriteFile(at, []byte("old\n"), 0o600))
			calls := 0
			files.BeforeReplacing(t, func() error {
				if calls < len(one.meanwhile) {
					one.meanwhile[calls]()
				}
				calls++
				return nil
			})
			err := d.replaceOld()
			if fault.ReasonOf(err) != agboxv1.ErrorReason_FILE_CHANGED {
				t.Errorf("replaced: %v", err)
			}
			if st, err := os.Lstat(at); err == nil && st.Mode().IsRegular() || one.want != "" {
				if got, err := os.ReadFile(at); string(got) != one.want {
					t.Errorf("the file has %q, %v, want %q", got, err, one.want)
				}
			}
			_ = os.Remove(at)
			left, _ := os.ReadDir(d.root)
			if one.kept == "" && len(left) > 0 || one.kept != "" && len(left) != 1 {
				t.Fatalf("left %v", left)
			}
			for _, e := range left {
				name := filepath.Join(d.root, e.Name())
				if got, _ := os.ReadFile(name); string(got) != one.kept || !strings.Contains(err.Error(), e.Name()) {
					t.Errorf("kept %q in %s, want %q; said %v", got, e.Name(), one.kept, err)
				}
				d.must(os.Remove(name))
			}
		})
	}
}

func TestAFileSystemThatExchangesNoFilesReplacesThem(t *testing.T) {
	d := newFixture(t)
	at := filepath.Join(d.root, "f")
	for _, no := range []error{unix.EINVAL, unix.ENOSYS} {
		d.must(os.WriteFile(at, []byte("old\n"), 0o600))
		files.BeforeReplacing(t, func() error { return no })
		d.must(d.replaceOld())
		if got, err := os.ReadFile(at); string(got) != "new\n" {
			t.Errorf("%v: the file has %q, %v", no, got, err)
		}
		if all, _ := os.ReadDir(d.root); len(all) != 1 {
			t.Errorf("%v: left %v", no, all)
		}
	}
}

// replaceOld replaces f by "new" if it has "old".
func (d *fixture) replaceOld() error {
	d.t.Helper()
	sum := sha256.Sum256([]byte("old\n"))
	req := d.write("f")
	req.GetWrite().ExpectedSha256 = sum[:]
	tr, err := guest.DialTransfer(d.t.Context(), d.link, anyone, req)
	d.must(err)
	defer tr.Close()
	d.must(tr.Push([]byte("new\n")))
	_, err = tr.Finish()
	return err
}
