package review

import (
	"cmp"
	"os"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// blockSize is the size of a block before compression, in bytes.
const blockSize = 1 << 20

// packWriter appends contents to a pack. Its goroutine compresses and writes full blocks,
// and ends with close.
type packWriter struct {
	file *os.File
	// written is the total of the bytes given to add, and offset where the next block
	// goes in the file.
	written, offset uint64
	buf             []byte
	full            chan []byte
	spare           chan []byte
	ended           chan struct{}
	// blocks and err belong to the goroutine until ended is closed.
	blocks []*storev1.BaseBlock
	err    error
}

// appendTo returns a writer that appends to a pack whose blocks end at an offset.
func appendTo(file *os.File, offset, written uint64) (*packWriter, error) {
	small, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	p := &packWriter{
		file: file, written: written, offset: offset, buf: make([]byte, 0, blockSize),
		full: make(chan []byte, 2), spare: make(chan []byte, 4), ended: make(chan struct{}),
	}
	go func() { // close waits for it
		defer close(p.ended)
		var out []byte
		for block := range p.full {
			if p.err == nil {
				out = small.EncodeAll(block, out[:0])
				p.write(out, len(block))
			}
			p.spare <- block[:0]
		}
	}()
	return p, nil
}

func (p *packWriter) write(out []byte, size int) {
	if _, p.err = p.file.WriteAt(out, int64(p.offset)); p.err != nil {
		return
	}
	// The disk begins now, so the sync at the end waits for little. It may fail: the sync
	// decides.
	_ = unix.SyncFileRange(int(p.file.Fd()), int64(p.offset), int64(len(out)), unix.SYNC_FILE_RANGE_WRITE)
	p.blocks = append(p.blocks, &storev1.BaseBlock{Offset: p.offset, Length: uint32(len(out)), Size: uint32(size)})
	p.offset += uint64(len(out))
}

// add appends bytes.
func (p *packWriter) add(data []byte) {
	p.written += uint64(len(data))
	for len(data) > 0 {
		n := min(len(data), blockSize-len(p.buf))
		p.buf, data = append(p.buf, data[:n]...), data[n:]
		if len(p.buf) == blockSize {
			p.flush()
		}
	}
}

func (p *packWriter) flush() {
	p.full <- p.buf
	select {
	case p.buf = <-p.spare:
	default:
		p.buf = make([]byte, 0, blockSize)
	}
}

// close writes the rest and returns the blocks. It leaves the file open.
func (p *packWriter) close() ([]*storev1.BaseBlock, error) {
	if len(p.buf) > 0 {
		p.flush()
	}
	close(p.full)
	<-p.ended
	return p.blocks, cmp.Or(p.err, p.file.Sync())
}
