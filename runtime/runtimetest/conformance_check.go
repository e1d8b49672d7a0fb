package runtimetest

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantClass requires an error with the given class of errdefs.
func wantClass(t *testing.T, err, class error) {
	t.Helper()
	is := map[error]func(error) bool{
		errdefs.ErrNotFound:    errdefs.IsNotFound,
		errdefs.ErrUnavailable: errdefs.IsUnavailable,
		errdefs.ErrConflict:    errdefs.IsConflict,
	}[class]
	if err == nil || !is(err) {
		t.Errorf("the error is %v, want one of class %v", err, class)
	}
}

// wantReason requires a fault with the given reason and a message.
func wantReason(t *testing.T, err error, reason agboxv1.ErrorReason) {
	t.Helper()
	f := fault.Of(err)
	if f == nil || f.Reason != reason {
		t.Fatalf("the error is %v, want a fault %v", err, reason)
	}
	if f.Message == "" {
		t.Errorf("the fault %v has no message", reason)
	}
}

func wantSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s are %v, want %v", what, got, want)
	}
}
