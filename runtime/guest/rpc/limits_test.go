package rpc

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestOnlyRequestsAreAcceptedFromAClient(t *testing.T) {
	if err := checkRequest(Header{Length: MaxFrame, StreamID: 1, Type: Request}); err != nil {
		t.Errorf("a request was refused: %v", err)
	}
	for _, h := range []Header{
		{StreamID: 1, Type: Data}, {StreamID: 1, Type: Response}, {StreamID: 1, Type: 9}, {StreamID: 1},
		{StreamID: 2, Type: Request}, {StreamID: 1, Type: Request, Length: MaxFrame + 1},
	} {
		if err := checkRequest(h); !errors.Is(err, ErrFrame) {
			t.Errorf("%+v: %v", h, err)
		}
	}
}

func TestCommandsOverTheKernelLimitAreRefused(t *testing.T) {
	if err := CheckArguments([]string{strings.Repeat("x", maxArgument-1)}, nil); err != nil {
		t.Errorf("the longest argument was refused: %v", err)
	}
	if CheckArguments([]string{strings.Repeat("x", maxArgument)}, nil) == nil {
		t.Error("an argument of 128 KiB was accepted")
	}
	many := slices.Repeat([]string{strings.Repeat("x", 1<<16)}, 32)
	if CheckArguments([]string{"true"}, many) == nil {
		t.Error("2 MiB of environment were accepted")
	}
	if CheckArguments(slices.Repeat([]string{""}, maxArguments/9+1), nil) == nil {
		t.Error("pointers of empty arguments were not counted")
	}
}
