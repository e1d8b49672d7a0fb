package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestAFullFileSystemLosesNoExitStatusAndNoByteUncounted(t *testing.T) {
	runChild(t, "full-disk", true)
}

func TestAFileSizeLimitCutsTheOutputExactlyThere(t *testing.T) {
	runChild(t, "file-size-limit", false)
}

func onFullDisk(dir string) error {
	if err := mountTmpfs(dir); err != nil {
		return err
	}
	d, err := OpenDir(dir)
	if err != nil {
		return err
	}
	status := StatusOptions{Owner: KeepOwner}
	if err := d.WriteStatus("e1", []byte("running"), status); err != nil {
		return err
	}
	w, err := d.Create("e1", testOptions)
	if err != nil {
		return err
	}
	d.KeepSpares(1, KeepOwner)
	if more, err := d.AddSpare(); !more {
		return fmt.Errorf("no spare: %w", err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 100_000), 0o600); err != nil {
		return err
	}
	given, chunk := uint64(0), make([]byte, 10_000)
	for ; w.Counts().StdoutDropped == 0; given += uint64(len(chunk)) {
		w.Write(Stdout, testTime, chunk)
	}
	fillErr := fill(filepath.Join(dir, "filler"))
	w.Write(Stdout, testTime.Add(time.Minute), chunk)
	given += uint64(len(chunk))
	if err := d.WriteStatus("e1", []byte("exited with 3 and some more words"), status); err != nil {
		return fmt.Errorf("the exit status was lost: %w", err)
	}
	for _, where := range []string{"spare", "new file"} {
		if err := d.WriteStatus("e2", []byte("running"), status); !errdefs.IsResourceExhausted(err) {
			return fmt.Errorf("a status in a %s on a full disk: %w, want ResourceExhausted", where, err)
		}
	}
	if d.Spares() != 0 {
		return errors.New("the spare was not taken")
	}
	if _, err := d.ReadStatus("e2"); !errors.Is(err, ErrNotExist) {
		return fmt.Errorf("status of e2: %w, want ErrNotExist", err)
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	w.Write(Stderr, testTime.Add(time.Hour), chunk)
	return errors.Join(fillErr, checkDisk(d, w, given))
}

// checkDisk compares the counts of the writer with what a reader finds.
func checkDisk(d *Dir, w *Writer, given uint64) error {
	c := w.Counts()
	if c.Stdout+c.StdoutDropped != given || c.Stdout == 0 || c.StderrDropped != 0 {
		return fmt.Errorf("%+v of %d bytes", c, given)
	}
	if got, err := d.ReadStatus("e1"); err != nil || string(got) != "exited with 3 and some more words" {
		return fmt.Errorf("status is %q, %w", got, err)
	}
	r, err := d.Open("e1", Cursor{})
	if err != nil {
		return err
	}
	r.Finish()
	buf := make([]byte, 4096)
	for err == nil {
		_, err = r.Next(buf)
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	if got := r.Cursor(); got.Stdout != c.Stdout || got.Stderr != c.Stderr || r.Notice() != "" {
		return fmt.Errorf("read %+v of %+v, notice %q", got, c, r.Notice())
	}
	return nil
}

// fill writes a file until the disk is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("the disk did not become full: %w", err)
	}
	return f.Close()
}

func underFileSizeLimit(dir string) error {
	signal.Ignore(unix.SIGXFSZ)
	const limit = 12_345
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return err
	}
	d, err := OpenDir(dir)
	if err != nil {
		return err
	}
	w, err := d.Create("e1", testOptions)
	if err != nil {
		return err
	}
	for i := range 3 {
		w.Write(Stdout, testTime.Add(time.Duration(i)*time.Minute), make([]byte, 10_000))
	}
	if got, want := w.Counts(), (Counts{Stdout: limit, StdoutDropped: 30_000 - limit}); got != want {
		return fmt.Errorf("counts are %+v, want %+v", got, want)
	}
	if err := d.WriteStatus("e1", []byte("exited with 3 and some more words"), StatusOptions{Owner: KeepOwner}); err != nil {
		return err
	}
	return checkDisk(d, w, 30_000)
}
