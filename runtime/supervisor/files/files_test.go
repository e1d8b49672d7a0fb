package files

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/workspace/archive"
)

// The daemon refuses a message that is not UTF-8, and could not say what is wrong.
func TestAMessageIsUTF8WhereverItIsCut(t *testing.T) {
	for n := range longest {
		failed := &archive.Failure{Op: "read", Name: strings.Repeat("é", longest/2), Err: unix.EACCES}
		m := explain("To copy", []byte(strings.Repeat("\x01", n)), failed).GetMessage()
		if !utf8.ValidString(m) || len(m) > maxMessage {
			t.Fatalf("with a path of %d bytes the message has %d and ends with %q", n, len(m), m[len(m)-9:])
		}
	}
}

// For inotify, an exchange moves the old file away.
func TestAFileThatReplacesAnExpectedOneIsReportedAsWritten(t *testing.T) {
	root, a := t.TempDir(), &actor{gate: make(chan struct{}, 1)}
	f, sum := filepath.Join(root, "f"), sha256.Sum256([]byte("old"))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(f, []byte("old"), 0o600))
	watch := newWatching(a, &guestv1.WatchTransfer{Path: []byte(root)})
	_, err := watch.begin()
	must(err)
	defer watch.close()
	w := &writing{WriteTransfer: &guestv1.WriteTransfer{Path: []byte(f), ExpectedSha256: sum[:]}, service: New(t.Context(), nil), actor: a, dir: -1, fd: -1}
	defer w.close()
	_, err = w.begin()
	must(err)
	must(w.append([]byte("new")))
	must(w.finish(new(guestv1.TransferEnd), func() error { return nil }))
	buf := make([]byte, 16<<10)
	n, err := watch.queue.Read(buf)
	must(err)
	watch.parse(buf[:n])
	for _, c := range watch.pending {
		if c.GetKind() != guestv1.ChangeKind_CHANGE_KIND_WRITTEN || string(c.GetPath()) != f {
			t.Errorf("it tells of %v", c)
		}
	}
	if len(watch.pending) == 0 {
		t.Error("it tells of nothing")
	}
}
