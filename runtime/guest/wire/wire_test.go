package wire

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func frame(h Header) []byte {
	p := make([]byte, HeaderLen+int(h.Length))
	PutHeader(p, h)
	for i := range p[HeaderLen:] {
		p[HeaderLen+i] = 0xff // as a header it would be refused
	}
	return p
}

func TestHeadersAreFoundInPiecesOfAnySize(t *testing.T) {
	want := []Header{
		{Length: 0, StreamID: 1, Type: Request},
		{Length: 1, StreamID: 3, Type: Request, Flags: 1},
		{Length: 70000, StreamID: 5, Type: Data},
		{Length: 9, StreamID: 7, Type: Response},
	}
	var stream []byte
	for _, h := range want {
		stream = append(stream, frame(h)...)
	}
	for _, most := range []int{1, 2, 11, 4096, len(stream)} {
		var got []Header
		s := Scanner{Check: func(h Header) error { got = append(got, h); return nil }}
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(most))
			if err := s.Scan(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if !slices.Equal(got, want) {
			t.Errorf("cut into pieces of up to %d bytes: found %v", most, got)
		}
	}
}

func TestOnlyRequestsAreAcceptedFromAClient(t *testing.T) {
	if err := CheckRequest(Header{Length: MaxFrame, StreamID: 1, Type: Request}); err != nil {
		t.Errorf("a request was refused: %v", err)
	}
	for _, h := range []Header{
		{StreamID: 1, Type: Data}, {StreamID: 1, Type: Response}, {StreamID: 1, Type: 9}, {StreamID: 1},
		{StreamID: 2, Type: Request}, {StreamID: 1, Type: Request, Length: MaxFrame + 1},
	} {
		if err := CheckRequest(h); !errors.Is(err, ErrFrame) {
			t.Errorf("%+v: %v", h, err)
		}
	}
}

func TestCommandsOverTheKernelLimitAreRefused(t *testing.T) {
	if err := CheckArguments([]string{strings.Repeat("x", MaxArgument-1)}, nil); err != nil {
		t.Errorf("the longest argument was refused: %v", err)
	}
	if CheckArguments([]string{strings.Repeat("x", MaxArgument)}, nil) == nil {
		t.Error("an argument of 128 KiB was accepted")
	}
	many := slices.Repeat([]string{strings.Repeat("x", 1<<16)}, 32)
	if CheckArguments([]string{"true"}, many) == nil {
		t.Error("2 MiB of environment were accepted")
	}
	if CheckArguments(slices.Repeat([]string{""}, MaxArguments/9+1), nil) == nil {
		t.Error("pointers of empty arguments were not counted")
	}
}
