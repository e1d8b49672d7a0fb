package files

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

func TestACopyThatCannotBeReadIsNotTakenForWhole(t *testing.T) {
	b := guesttest.New(t)
	listener, err := net.Listen("unix", filepath.Join(b.Install.GuestLink("a"), paths.LinkSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := &copyIn{files: New(b.Links, b.Install), lk: &links.Link{SandboxID: "a"}}
	for _, broken := range []error{
		errors.New("the disk is broken"), io.ErrUnexpectedEOF, fmt.Errorf("the mount is lost: %w", io.EOF),
	} {
		arrived := make(chan error, 1)
		go func() { arrived <- takeTransfer(listener) }()
		err := c.send(t.Context(), "/work", "", func(w io.Writer) error {
			_, _ = io.WriteString(w, "half of it")
			return broken
		})
		if !errors.Is(err, broken) {
			t.Errorf("%v: the copy says %v", broken, err)
		}
		if err := <-arrived; err == nil {
			t.Errorf("%v: the supervisor saw an end in order", broken)
		}
	}
}

// takeTransfer handles one transfer as a supervisor does. It returns nil if the transfer
// ended normally.
func takeTransfer(listener net.Listener) error {
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	in := rpc.NewPipe(conn, strings.NewReader(""))
	if err := in.Expect(rpc.Preamble); err != nil {
		return err
	}
	if _, err := in.Word(); err != nil {
		return err
	}
	if err := in.SendWord("", nil); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	return in.SendWord("", nil)
}

func TestLinesAreAddedOnceAndTheRestStays(t *testing.T) {
	const lines = "[safe]\n\tdirectory = *\n"
	for text, want := range map[string]string{
		"":                     lines,
		"[user]\n\tname = a":   "[user]\n\tname = a\n" + lines,
		"[user]\n\tname = a\n": "[user]\n\tname = a\n" + lines,
		"# " + lines:           "# " + lines + lines,
		lines:                  lines,
		"a\n" + lines + "b\n":  "a\n" + lines + "b\n",
	} {
		if got, missing := withLines(text, lines); got != want || missing != (got != text) {
			t.Errorf("%q became %q (%v), not %q", text, got, missing, want)
		}
	}
}
