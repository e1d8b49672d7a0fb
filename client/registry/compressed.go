package registry

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
)

// maxUnpacked bounds the files of a feature, in bytes.
const maxUnpacked = 256 << 20

// uncompressed returns the archive in a layer. The name of a layer says nothing about its
// compression, so its first bytes do.
func uncompressed(layer []byte) (io.Reader, error) {
	var in io.Reader = bytes.NewReader(layer)
	if bytes.HasPrefix(layer, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = unzipped
	}
	return &bounded{in: in, left: maxUnpacked}, nil
}

// bounded fails when more is read than a feature may have.
type bounded struct {
	in   io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errors.New("its files are too large")
	}
	return n, err
}
