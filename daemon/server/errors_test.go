package server

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// A client takes DEADLINE_EXCEEDED for its own deadline, and does not show the sentence.
func TestOnlyTheDeadlineOfACallHasItsCode(t *testing.T) {
	slow := fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "Docker did not answer in time.").Because(context.DeadlineExceeded)
	for err, want := range map[error]codes.Code{
		fmt.Errorf("wait: %w", context.DeadlineExceeded): codes.DeadlineExceeded,
		context.Canceled:                    codes.Canceled,
		fmt.Errorf("list images: %w", slow): codes.Unavailable,
	} {
		if got := code(err); got != want {
			t.Errorf("%v has the code %v; want %v", err, got, want)
		}
	}
}
