package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// Layout of the two meta pages of a bbolt file: a page header of 16 bytes, then
// the meta, in the machine's byte order. Source: bbolt's internal/common.
const (
	metaOffset   = 16
	metaSize     = 64
	metaChecksum = 56
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
)

// geometry is what the meta pages say about the file.
type geometry struct {
	pageSize int64
	// pages is the number of pages from the beginning of the file to the end of
	// the last page in use.
	pages uint64
	// txid is the number of the last committed transaction.
	txid uint64
}

// probe examines the file with plain reads, which are safe on any content. It
// returns an error for a file that is empty, too short, or without two valid
// meta pages.
//
// bbolt itself accepts a file with one valid meta page, and so would silently
// drop the last transaction. A meta fits into one disk sector, and disks write
// sectors atomically. So an invalid meta page means damage, not a crash.
func probe(f *os.File) (geometry, error) {
	info, err := f.Stat()
	if err != nil {
		return geometry{}, err
	}
	if !info.Mode().IsRegular() {
		return geometry{}, errors.New("it is not a regular file")
	}
	if info.Size() == 0 {
		return geometry{}, errors.New("the file is empty")
	}
	first, err := readMetaPage(f, 0)
	if err != nil {
		return geometry{}, fmt.Errorf("first meta page: %w", err)
	}
	second, err := readMetaPage(f, first.pageSize)
	if err != nil {
		return geometry{}, fmt.Errorf("second meta page: %w", err)
	}
	newest := first
	if second.txid > first.txid {
		newest = second
	}
	if newest.pages < 4 || newest.pages > uint64(info.Size()/newest.pageSize) {
		return geometry{}, fmt.Errorf("the file has %d bytes but needs %d pages of %d bytes",
			info.Size(), newest.pages, newest.pageSize)
	}
	return newest, nil
}

func readMetaPage(f *os.File, at int64) (geometry, error) {
	var buf [metaOffset + metaSize]byte
	if _, err := f.ReadAt(buf[:], at); err != nil {
		if errors.Is(err, io.EOF) {
			return geometry{}, errors.New("the file is too short")
		}
		return geometry{}, err
	}
	meta := buf[metaOffset:]
	order := binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(meta[:metaChecksum])
	switch {
	case order.Uint32(meta) != boltMagic:
		return geometry{}, errors.New("it is not a bbolt file")
	case order.Uint32(meta[4:]) != boltVersion:
		return geometry{}, fmt.Errorf("bbolt version %d", order.Uint32(meta[4:]))
	case order.Uint64(meta[metaChecksum:]) != sum.Sum64():
		return geometry{}, errors.New("wrong checksum")
	}
	g := geometry{
		pageSize: int64(order.Uint32(meta[8:])),
		pages:    order.Uint64(meta[40:]),
		txid:     order.Uint64(meta[48:]),
	}
	if g.pageSize < 1024 || g.pageSize&(g.pageSize-1) != 0 {
		return geometry{}, fmt.Errorf("page size %d", g.pageSize)
	}
	return g, nil
}
