package caller

import (
	"bytes"
	"sync"
	"testing"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestTheCodecIsThatOfGRPC: of messages of all sizes, whatever was in the buffers before.
func TestTheCodecIsThatOfGRPC(t *testing.T) {
	theirs := encoding.GetCodecV2(Codec.Name())
	var wg sync.WaitGroup
	for seed := range 4 {
		wg.Go(func() {
			for round := range 3 {
				for _, size := range []int{0, 1, 250, 1000, 4 << 10, 100_000, 256<<10 - 8, 256 << 10, 5 << 20} {
					m := wrapperspb.Bytes(bytes.Repeat([]byte{byte(1 + seed + round)}, size))
					want, err := proto.Marshal(m)
					if err != nil {
						t.Fatal(err)
					}
					raw, err := Codec.Marshal(m)
					if err != nil || !bytes.Equal(raw.Materialize(), want) {
						t.Errorf("%d bytes are encoded in another way (%v)", size, err)
					}
					for from, codec := range map[string]encoding.CodecV2{"theirs": theirs, "ours": Codec} {
						got := new(wrapperspb.BytesValue)
						if err := codec.Unmarshal(pieces(want), got); err != nil || !proto.Equal(got, m) {
							t.Errorf("%s: %d bytes are decoded to %d (%v)", from, size, len(got.GetValue()), err)
						}
					}
					raw.Free()
				}
			}
		})
	}
	wg.Wait()
	if _, err := Codec.Marshal("text"); err == nil {
		t.Error("a text is encoded")
	}
	if err := Codec.Unmarshal(pieces([]byte{0xff}), new(wrapperspb.BytesValue)); err == nil {
		t.Error("half a message is decoded")
	}
}

// pieces are bytes as they come in frames.
func pieces(raw []byte) (all mem.BufferSlice) {
	for ; len(raw) > 16<<10; raw = raw[16<<10:] {
		all = append(all, mem.SliceBuffer(raw[:16<<10]))
	}
	return append(all, mem.SliceBuffer(raw))
}

func TestABufferIsUsedAgain(t *testing.T) {
	p := new(pool)
	for _, length := range []int{1, 256, 257, 256 << 10, 4 << 20} {
		buf := p.Get(length)
		if len(*buf) != length || cap(*buf) < length || cap(*buf) > max(2*length, 1<<smallest) {
			t.Errorf("for %d bytes there are %d of %d", length, len(*buf), cap(*buf))
		}
		p.Put(buf)
	}
	own := make([]byte, 300) // of no size that is kept
	p.Put(&own)
	if big := p.Get(5 << 20); len(*big) != 5<<20 {
		t.Errorf("for 5 MiB there are %d bytes", len(*big))
	}
}
