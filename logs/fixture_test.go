package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var testTime = time.Unix(1_700_000_000, 123)

var testOptions = WriterOptions{Owner: KeepOwner}

// fataler is a *testing.T, *testing.B or *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func openDir(t testing.TB) (*Dir, string) {
	t.Helper()
	path := t.TempDir()
	d, err := OpenDir(path)
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d, path
}

func create(t fataler, d *Dir, id string, opt WriterOptions) *Writer {
	t.Helper()
	w, err := d.Create(id, opt)
	must(t, err)
	return w
}

func open(t fataler, d *Dir, id string, at Cursor) *Reader {
	t.Helper()
	r, err := d.Open(id, at)
	must(t, err)
	return r
}

func must(t fataler, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// piece is one write, and also what a test expects from a reader.
type piece struct {
	stream Stream
	data   string
}

func writeAll(w *Writer, pieces ...piece) {
	for _, p := range pieces {
		w.Write(p.stream, testTime, []byte(p.data))
	}
}

// drain reads until io.EOF. It joins adjacent chunks of the same stream, because the cuts
// between chunks may change. It checks that offsets are contiguous, and leaves gaps out.
func drain(t fataler, r *Reader, bufSize int) []piece {
	t.Helper()
	return join(nil, slices.DeleteFunc(drainAll(t, r, bufSize), piece.isGap)...)
}

// gap is a piece for bytes that were not kept.
func gap(stream Stream, dropped uint64) piece {
	return piece{stream, fmt.Sprint(gapPrefix, dropped)}
}

func asPiece(c Chunk) piece {
	if c.Dropped > 0 {
		return gap(c.Stream, c.Dropped)
	}
	return piece{c.Stream, string(c.Data)}
}

const gapPrefix = "\x00gap "

func (p piece) isGap() bool { return strings.HasPrefix(p.data, gapPrefix) }

// drainAll is drain with the gaps.
func drainAll(t fataler, r *Reader, bufSize int) []piece {
	t.Helper()
	var got []piece
	buf := make([]byte, bufSize)
	for {
		before := r.Cursor()
		c, err := r.Next(buf)
		if errors.Is(err, io.EOF) {
			return got
		}
		must(t, err)
		if (len(c.Data) == 0) != (c.Dropped > 0) || len(c.Data) > len(buf) {
			t.Fatalf("a chunk of %d bytes for a buffer of %d", len(c.Data), len(buf))
		}
		want := before.Stdout
		if c.Stream == Stderr {
			want = before.Stderr
		}
		if c.Offset != want {
			t.Fatalf("chunk of %v at offset %d, the cursor was at %d", c.Stream, c.Offset, want)
		}
		got = join(got, asPiece(c))
	}
}

// join appends next, or extends the last piece.
func join(pieces []piece, next ...piece) []piece {
	for _, p := range next {
		if n := len(pieces); n > 0 && pieces[n-1].stream == p.stream && !pieces[n-1].isGap() && !p.isGap() {
			pieces[n-1].data += p.data
		} else if p.data != "" {
			pieces = append(pieces, p)
		}
	}
	return pieces
}

// streams returns all bytes of each stream.
func streams(pieces []piece) (stdout, stderr string) {
	for _, p := range pieces {
		if p.stream == Stdout {
			stdout += p.data
		} else {
			stderr += p.data
		}
	}
	return stdout, stderr
}

func readFile(t fataler, path, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path, name))
	must(t, err)
	return b
}

func writeFile(t fataler, path, name string, content []byte) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(path, name), content, 0o600))
}
