package logs

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// BeatSize is the size of the record of the newest beat of an incarnation, in bytes.
const BeatSize = 256

// Beat is the file with the newest beat of an incarnation, open for writing. Its methods
// must not run at the same time.
type Beat struct{ file diskFile }

// CreateBeat makes the file. It fails with errdefs.ErrAlreadyExists if there is one.
func (d *Dir) CreateBeat(execID string, owner Owner) (*Beat, error) {
	if err := checkID(execID); err != nil {
		return nil, err
	}
	f, err := d.makeFile(BeatName(execID), owner)
	if err != nil {
		return nil, err
	}
	return &Beat{diskFile{f}}, nil
}

// Write replaces the record. It has at most BeatSize bytes and is filled up with spaces. The
// record outlives the process, but is not synced: the next beat replaces it.
func (b *Beat) Write(record []byte) error {
	if len(record) > BeatSize {
		return unix.EFBIG
	}
	page := make([]byte, BeatSize)
	for i := copy(page, record); i < BeatSize; i++ {
		page[i] = ' '
	}
	_, err := b.file.WriteAt(page, 0)
	return err
}

// Close releases the file.
func (b *Beat) Close() error { return b.file.Close() }

// ReadBeat returns the record of the newest beat, of at most BeatSize bytes. It fails with
// ErrNotExist if there is none, and with ErrTampered if its name belongs to something else.
func (d *Dir) ReadBeat(execID string) ([]byte, error) {
	if err := checkID(execID); err != nil {
		return nil, err
	}
	f, err := d.openFile(BeatName(execID), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, BeatSize))
}

// RemoveBeat removes the record of the newest beat of an exec that has ended. removed means
// that there was one.
func (d *Dir) RemoveBeat(execID string) (removed bool, err error) {
	if err := checkID(execID); err != nil {
		return false, err
	}
	err = d.at(func(fd int) error { return unix.Unlinkat(fd, BeatName(execID), 0) })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, d.describe(BeatName(execID), err)
	}
	return true, nil
}
