package caller

import (
	"fmt"
	"math/bits"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Codec encodes and decodes messages as gRPC's own codec does, with Buffers: that one takes and clears 1 MiB
// for each message of more than 32 KiB.
var Codec encoding.CodecV2 = codec{}

type codec struct{}

// Name is that of gRPC's own codec, which the other end may have.
func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	buf := Buffers.Get(proto.Size(m))
	raw, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend((*buf)[:0], m)
	if err != nil {
		Buffers.Put(buf)
		return nil, err
	}
	*buf = raw
	return mem.BufferSlice{mem.NewBuffer(buf, Buffers)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	buf := data.MaterializeToBuffer(Buffers)
	defer buf.Free()
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

// Buffers keeps the buffers of messages, which come with anything in them: each is written before it is read.
var Buffers mem.BufferPool = new(pool)

// smallest and largest are the exponents of the capacities that a pool keeps, in bytes.
const smallest, largest = 8, 22

// pool has buffers by the powers of two that are their capacities.
type pool [largest - smallest + 1]sync.Pool

func (p *pool) Get(length int) *[]byte {
	size := max(bits.Len(uint(max(length, 1)-1)), smallest)
	if size > largest {
		buf := make([]byte, length)
		return &buf
	}
	if buf, ok := p[size-smallest].Get().(*[]byte); ok {
		*buf = (*buf)[:length]
		return buf
	}
	buf := make([]byte, length, 1<<size)
	return &buf
}

func (p *pool) Put(buf *[]byte) {
	if c := uint(cap(*buf)); bits.OnesCount(c) == 1 && c >= 1<<smallest && c <= 1<<largest {
		p[bits.Len(c)-1-smallest].Put(buf)
	}
}
