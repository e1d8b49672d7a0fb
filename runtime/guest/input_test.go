package guest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// reader is a fake supervisor that takes a bounded number of bytes of each call.
type reader struct {
	takes   []int
	got     strings.Builder
	eofs    int
	longest int
}

func (r *reader) stdin(_ context.Context, req *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
	if req.GetOffset() != uint64(r.got.Len()) {
		return nil, status.Error(codes.InvalidArgument, "a gap")
	}
	r.longest = max(r.longest, len(req.GetData()))
	n := len(req.GetData())
	if len(r.takes) > 0 {
		if r.takes[0] < 0 {
			r.takes = r.takes[1:]
			return nil, status.Error(codes.ResourceExhausted, "full")
		}
		n, r.takes = min(n, r.takes[0]), r.takes[1:]
	}
	r.got.Write(req.GetData()[:n])
	if req.GetEof() && n == len(req.GetData()) {
		r.eofs++
	}
	return &guestv1.WriteStdinResponse{Offset: uint64(r.got.Len()), Open: r.eofs == 0}, nil
}

func TestInputIsSentUntilAllOfItIsWritten(t *testing.T) {
	data := []byte(strings.Repeat("0123456789", wire.MaxStdin/4))
	for name, takes := range map[string][]int{
		"at once":            nil,
		"in parts":           {100, 0, 3000, 1 << 20},
		"when there is room": {-1, 5, -1},
	} {
		r := &reader{takes: takes}
		c := dial(t, play(t, &actor{stdin: r.stdin}))
		n, open, err := c.WriteStdin(t.Context(), "e", "w", 0, data, true)
		if err != nil || n != uint64(len(data)) || open || r.got.String() != string(data) || r.eofs != 1 || r.longest > wire.MaxStdin {
			t.Errorf("%s: %d, open %v, %v; %d bytes arrived and %d ends, the longest call %d", name, n, open, err, r.got.Len(), r.eofs, r.longest)
		}
	}
}

func TestInputThatIsNotReadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := dial(t, play(t, &actor{stdin: func(context.Context, *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
		cancel()
		return nil, status.Error(codes.ResourceExhausted, "full")
	}}))
	if _, _, err := c.WriteStdin(ctx, "e", "w", 0, []byte("x"), false); !errors.Is(err, context.Canceled) && !errdefs.IsResourceExhausted(err) {
		t.Error(err)
	}
}

func TestAnInputCountThatDecreasesIsTampering(t *testing.T) {
	c := dial(t, play(t, &actor{stdin: func(context.Context, *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
		return &guestv1.WriteStdinResponse{Offset: 3, Open: true}, nil
	}}))
	_, _, err := c.WriteStdin(t.Context(), "e", "w", 5, []byte("x"), false)
	wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
}

func TestInputToAnOldSupervisorIsNotImplemented(t *testing.T) {
	unknown := status.Error(codes.Unimplemented, "method WriteStdin")
	c := dial(t, play(t, &actor{stdin: func(context.Context, *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
		return nil, unknown
	}}))
	_, _, err := c.WriteStdin(t.Context(), "e", "w", 0, []byte("x"), false)
	wantReason(t, err, agboxv1.ErrorReason_UNSUPPORTED_SPEC)
}
