package files_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/agbox/agbox/internal/paths"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/supervisor/files"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a service whose transfers run in this process, with a directory for them.
type fixture struct {
	t       *testing.T
	service *files.Service
	link    string
	root    string
	// served counts the running transfers.
	served sync.WaitGroup
}

// shortDir creates a directory for a socket; the path of t.TempDir is too long.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "agbox-files-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func newFixture(t *testing.T) *fixture {
	d := &fixture{t: t, service: files.New(t.Context(), nil), link: shortDir(t), root: t.TempDir()}
	l, err := net.Listen("unix", filepath.Join(d.link, paths.LinkSocket))
	d.must(err)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.served.Go(func() {
				d.service.Serve(c.(*net.UnixConn), bytes.NewReader(nil))
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); accepting.Wait(); d.served.Wait() })
	return d
}

func (d *fixture) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// begin begins a transfer and returns a function that cancels it.
func (d *fixture) begin(req *guestv1.TransferRequest) (tr *guest.Transfer, cancel func()) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	tr, err := guest.DialTransfer(ctx, d.link, anyone, req)
	d.must(err)
	d.t.Cleanup(func() { cancel(); tr.Close() })
	return tr, cancel
}

func (d *fixture) write(name string) *guestv1.TransferRequest {
	return &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Write{
		Write: &guestv1.WriteTransfer{Path: []byte(filepath.Join(d.root, name))},
	}}
}

func (d *fixture) into() *guestv1.TransferRequest {
	return &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_In{In: &guestv1.InTransfer{Path: []byte(d.root)}}}
}

// want waits until all transfers have ended and compares the directory with files:
// names and contents in turn.
func (d *fixture) want(files ...string) {
	d.t.Helper()
	d.served.Wait()
	list, err := os.ReadDir(d.root)
	d.must(err)
	var have []string
	for _, e := range list {
		raw, err := os.ReadFile(filepath.Join(d.root, e.Name()))
		d.must(err)
		have = append(have, e.Name(), string(raw))
	}
	if !slices.Equal(have, files) {
		d.t.Errorf("there is %q, want %q", have, files)
	}
}

func TestACancelledWriteDoesNotReplaceALaterOne(t *testing.T) {
	d := newFixture(t)
	syncing, goOn := make(chan struct{}), make(chan struct{})
	var later atomic.Bool
	files.SetFsync(t, func(int) error {
		if !later.Swap(true) {
			close(syncing)
			<-goOn
		}
		return nil
	})
	old, cancel := d.begin(d.write("f"))
	d.must(old.Push([]byte("old")))
	ended := make(chan error, 1)
	go func() { _, err := old.Finish(); ended <- err }()
	<-syncing
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled write ended with %v", err)
	}
	old.Close()
	fresh, _ := d.begin(d.write("f"))
	d.must(fresh.Push([]byte("new")))
	_, err := fresh.Finish()
	d.must(err)
	close(goOn)
	d.want("f", "new")
}

func TestACancelledCopyUnpacksNothingMore(t *testing.T) {
	d := newFixture(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"a", "b"} {
		d.must(os.WriteFile(filepath.Join(d.root, name), []byte("new"), 0o600))
		d.must(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 3}))
		_, err := w.Write([]byte("old"))
		d.must(err)
	}
	d.must(w.Close())
	tr, cancel := d.begin(d.into())
	release := d.service.HoldThreads()
	d.must(tr.Push(b.Bytes())) // fits into the socket's buffer, so all of it can still be read
	cancel()
	tr.Close()
	release()
	d.want("a", "new", "b", "new")
}

// anyone accepts every listener: supervisors of tests are not the first process of a container.
func anyone(context.Context, int) error { return nil }
