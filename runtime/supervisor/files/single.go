package files

import (
	"context"
	"errors"
	"io"
	"math"
	"path"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/process"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// reading is a transfer that reads a part of one file.
type reading struct {
	*guestv1.ReadTransfer
	actor *actor
	fd    int
	left  uint64
}

func (r *reading) begin() (*guestv1.FileStat, error) {
	r.left = r.GetLength()
	if r.left == 0 {
		r.left = math.MaxUint64
	}
	if r.GetOffset() > math.MaxInt64 {
		return nil, invalid("cannot be read from an offset of more than %d", int64(math.MaxInt64))
	}
	p := string(r.GetPath())
	var st *guestv1.FileStat
	err := r.actor.do(func() (err error) {
		if r.fd, err = open(p, unix.O_RDONLY); err != nil {
			return err
		}
		if st, err = describe(r.fd, path.Base(p)); err != nil {
			return err
		}
		if err := wantRegular(st.GetMode()); err != nil {
			return err
		}
		_, err = unix.Seek(r.fd, int64(r.GetOffset()), io.SeekStart)
		return err
	})
	return st, err
}

func wantRegular(mode uint32) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return errNotRegular
}

func (r *reading) run(_ context.Context, p *rpc.Pipe, moved *process.BulkMeter) (*guestv1.TransferEnd, error) {
	buf := make([]byte, min(r.left, rpc.MaxChunk))
	for r.left > 0 {
		var n int
		err := r.actor.do(func() (err error) {
			n, err = unix.Read(r.fd, buf[:min(r.left, uint64(len(buf)))])
			return err
		})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			// End the stream of bytes; the final message says why.
			return nil, errors.Join(err, p.End())
		case n == 0:
			return new(guestv1.TransferEnd), p.End()
		}
		if _, err := p.Write(buf[:n]); err != nil {
			return nil, err
		}
		moved.Add(n)
		r.left -= uint64(n)
	}
	return new(guestv1.TransferEnd), p.End()
}

func (r *reading) close() {
	if r.fd >= 0 {
		closeFD(r.fd)
		r.fd = -1
	}
}
