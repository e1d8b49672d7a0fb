package logs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// A status file has two halves of the same size. Each has room for one status:
//
//	 0  u32  magic "agS1"
//	 4  u32  CRC-32C of all that follows
//	 8  u64  generation
//	16  u32  length of the content
//	20       content, then zeros
//
// The complete status with the greater generation is valid. The first status of an exec
// creates the file. A later one overwrites the older half. So it needs no more disk space
// than the first one, and if a crash interrupts it, the status before it stays readable.
const (
	statusMagic  = 0x61675331
	statusHeader = 20
	// slotUnit makes the smallest file 4096 bytes, one block of most file systems.
	slotUnit = 2048
	// slotSpare is room for a later status that is longer than the first.
	slotSpare = 1024
	maxSlot   = (statusHeader + MaxStatus + slotSpare + slotUnit - 1) / slotUnit * slotUnit
)

// MaxStatus is the maximum size of a status in bytes.
const MaxStatus = 64 << 10

// StatusOptions are the options of WriteStatus.
type StatusOptions struct {
	// Owner of a new file. The zero value is root. KeepOwner leaves the owner as it is.
	Owner Owner
	// NoSync skips the sync: the status survives the end of the process and of the
	// container, but not a crash of the host.
	NoSync bool
}

// errNoSlot means that a status does not fit into the existing file.
var errNoSlot = errors.New("no room for this status in the file")

// WriteStatus sets the status of an exec: at most MaxStatus bytes, which this package
// does not interpret. If it returns without an error, the status has replaced the
// previous one as a whole. After an error or a crash, the previous one may still be
// there. Calls for the same exec must not overlap.
//
// The first status of an exec reserves the space for later ones of about its size. So
// these succeed on a full disk, except on file systems that never overwrite in place.
func (d *Dir) WriteStatus(execID string, content []byte, opt StatusOptions) error {
	if err := checkID(execID); err != nil {
		return err
	}
	if len(content) > MaxStatus {
		return fmt.Errorf("a status of %d bytes is over the limit of %d: %w",
			len(content), MaxStatus, errdefs.ErrInvalidArgument)
	}
	err := d.updateStatus(StatusName(execID), content, opt)
	if errors.Is(err, ErrNotExist) {
		if done, err := d.firstStatus(StatusName(execID), content, opt); done {
			return err
		}
	}
	if errors.Is(err, ErrNotExist) || errors.Is(err, ErrTampered) || errors.Is(err, errNoSlot) {
		return d.replaceStatus(execID, content, opt)
	}
	return err
}

// updateStatus overwrites the older half of the existing file.
func (d *Dir) updateStatus(name string, content []byte, opt StatusOptions) error {
	f, err := d.openFile(name, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := readStatus(f)
	if errors.Is(err, ErrDamaged) {
		return errNoSlot
	}
	if err != nil {
		return d.describe(name, err)
	}
	if statusHeader+len(content) > st.slot {
		return errNoSlot
	}
	older := 1 - st.half
	if _, err := f.WriteAt(frameStatus(content, st.generation+1, st.slot), int64(older*st.slot)); err != nil {
		return d.describe(name, err)
	}
	if opt.NoSync {
		return nil
	}
	// Size and blocks do not change, so only the data must be synced.
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		return d.describe(name, err)
	}
	return nil
}

// firstStatus writes the first status of an exec into a spare file and names the file. It
// returns false if it cannot.
func (d *Dir) firstStatus(name string, content []byte, opt StatusOptions) (bool, error) {
	f := d.takeSpare(opt.Owner)
	if f == nil {
		return false, nil
	}
	defer func() { _ = f.Close() }()
	if err := fillStatus(f, content, opt.NoSync); err != nil {
		return true, d.describe(name, err)
	}
	if err := d.nameSpare(f, name); err != nil {
		return false, nil
	}
	return true, d.syncNames(name, opt)
}

// replaceStatus writes a new file and renames it over an existing one.
func (d *Dir) replaceStatus(execID string, content []byte, opt StatusOptions) error {
	name, temp := StatusName(execID), statusTemp(execID)
	if err := d.unlink(temp); err != nil { // left by an interrupted call
		return err
	}
	f, err := d.makeFile(temp, opt.Owner)
	if err != nil {
		return err
	}
	err = errors.Join(fillStatus(f, content, opt.NoSync), f.Close())
	if err == nil {
		err = d.at(func(fd int) error { return unix.Renameat(fd, temp, fd, name) })
	}
	if err != nil {
		return errors.Join(d.describe(name, err), d.unlink(temp))
	}
	return d.syncNames(name, opt)
}

// syncNames makes the name of a new status durable.
func (d *Dir) syncNames(name string, opt StatusOptions) error {
	if opt.NoSync {
		return nil
	}
	if err := d.f.Sync(); err != nil {
		return d.describe(name, err)
	}
	return nil
}

// statusTemp is never the name of a file of another exec: exec ids do not begin with a
// dot.
func statusTemp(execID string) string { return "." + StatusName(execID) + ".tmp" }

// fillStatus writes both halves, so that the blocks of the second are allocated.
func fillStatus(f *os.File, content []byte, noSync bool) error {
	slot := (statusHeader + len(content) + slotSpare + slotUnit - 1) / slotUnit * slotUnit
	_, err := f.WriteAt(frameStatus(content, 1, 2*slot), 0)
	if err == nil && !noSync {
		err = f.Sync()
	}
	return err
}

// frameStatus returns content with its header, padded with zeros to size.
func frameStatus(content []byte, generation uint64, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint32(b[0:], statusMagic)
	binary.BigEndian.PutUint64(b[8:], generation)
	binary.BigEndian.PutUint32(b[16:], uint32(len(content)))
	end := statusHeader + copy(b[statusHeader:], content)
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:end], castagnoli))
	return b
}

// ReadStatus returns the newest complete status of an exec. It fails with ErrNotExist if
// none was ever written, with ErrDamaged if none is complete, and with ErrTampered if the
// name belongs to something else.
func (d *Dir) ReadStatus(execID string) ([]byte, error) {
	name := StatusName(execID)
	f, err := d.openFor(execID, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := readStatus(f)
	if err != nil {
		return nil, d.describe(name, err)
	}
	return st.content, nil
}

// status is the decoded content of a status file.
type status struct {
	content    []byte
	generation uint64
	half       int // 0 or 1: the half that has content
	slot       int // size of a half in bytes
}

func readStatus(f *os.File) (status, error) {
	info, err := f.Stat()
	if err != nil {
		return status{}, err
	}
	size := info.Size()
	if size < 2*slotUnit || size > 2*maxSlot || size%(2*slotUnit) != 0 {
		return status{}, fmt.Errorf("%w: it has %d bytes", ErrDamaged, size)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return status{}, err
	}
	best := status{half: -1, slot: int(size) / 2}
	for half := range 2 {
		content, generation, ok := parseStatus(b[half*best.slot:][:best.slot])
		if ok && (best.half < 0 || generation > best.generation) {
			best.content, best.generation, best.half = content, generation, half
		}
	}
	if best.half < 0 {
		return status{}, fmt.Errorf("%w: neither half holds a whole status", ErrDamaged)
	}
	return best, nil
}

// parseStatus decodes one half of a status file.
func parseStatus(b []byte) (content []byte, generation uint64, ok bool) {
	length := binary.BigEndian.Uint32(b[16:])
	if binary.BigEndian.Uint32(b[0:]) != statusMagic || uint64(length) > uint64(len(b)-statusHeader) {
		return nil, 0, false
	}
	end := statusHeader + int(length)
	if crc32.Checksum(b[8:end], castagnoli) != binary.BigEndian.Uint32(b[4:]) {
		return nil, 0, false
	}
	return b[statusHeader:end], binary.BigEndian.Uint64(b[8:]), true
}
