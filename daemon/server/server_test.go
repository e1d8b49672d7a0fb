package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"github.com/containerd/errdefs"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/internal/fault"
)

// bare is a guard without handlers.
func bare(t *testing.T) *guard {
	t.Helper()
	rules := protovalidate.GlobalValidator
	return &guard{rules: rules, log: slog.New(slog.DiscardHandler), life: newLifetime()}
}

func TestEveryClassOfErrorHasItsCodeAndReason(t *testing.T) {
	s := bare(t)
	for class, want := range map[error]codes.Code{
		errdefs.ErrInvalidArgument:    codes.InvalidArgument,
		errdefs.ErrNotFound:           codes.NotFound,
		errdefs.ErrAlreadyExists:      codes.AlreadyExists,
		errdefs.ErrFailedPrecondition: codes.FailedPrecondition,
		errdefs.ErrOutOfRange:         codes.OutOfRange,
		errdefs.ErrResourceExhausted:  codes.ResourceExhausted,
		errdefs.ErrUnavailable:        codes.Unavailable,
		errdefs.ErrDataLoss:           codes.DataLoss,
		errdefs.ErrInternal:           codes.Internal,
		context.Canceled:              codes.Canceled,
		context.DeadlineExceeded:      codes.DeadlineExceeded,
	} {
		err := fault.New(class, agboxv1.ErrorReason_LOG_UNREADABLE, "Something is wrong.").With("exec_id", "x")
		st, _ := status.FromError(s.status("m", fmt.Errorf("on the way: %w", err)))
		if st.Code() != want {
			t.Errorf("%v has code %s, want %s", class, st.Code(), want)
		}
		info, ok := st.Details()[0].(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != "agents-sandbox" || info.GetReason() != "LOG_UNREADABLE" || info.GetMetadata()["exec_id"] != "x" {
			t.Errorf("%v has details %v", class, st.Details())
		}
	}
	if st, _ := status.FromError(s.status("m", errors.New("who knows"))); st.Code() != codes.Internal {
		t.Errorf("an unknown error has code %s", st.Code())
	}
}

func TestHostileIDsNamesAndArgumentsAreRefusedAtTheEdge(t *testing.T) {
	s := bare(t)
	exec := func(change func(*agboxv1.CreateExecRequest)) *agboxv1.CreateExecRequest {
		req := &agboxv1.CreateExecRequest{SandboxId: "a", Command: []string{"true"}}
		change(req)
		return req
	}
	for name, req := range map[string]any{
		"a path":            &agboxv1.GetSandboxRequest{SandboxId: "../x"},
		"a NUL":             &agboxv1.GetSandboxRequest{SandboxId: "a\x00b"},
		"4 KB":              &agboxv1.GetSandboxRequest{SandboxId: strings.Repeat("a", 4096)},
		"a look-alike":      &agboxv1.GetSandboxRequest{SandboxId: "а"}, // Cyrillic
		"nothing":           &agboxv1.GetSandboxRequest{},
		"an exec's path":    &agboxv1.FollowExecLogsRequest{ExecId: "a/../../b"},
		"no command":        exec(func(r *agboxv1.CreateExecRequest) { r.Command = nil }),
		"a NUL in a word":   exec(func(r *agboxv1.CreateExecRequest) { r.Command = []string{"a\x00"} }),
		"a relative cwd":    exec(func(r *agboxv1.CreateExecRequest) { r.Cwd = "tmp" }),
		"a key with =":      exec(func(r *agboxv1.CreateExecRequest) { r.EnvOverrides = map[string]string{"a=b": "c"} }),
		"an exec id":        exec(func(r *agboxv1.CreateExecRequest) { r.ExecId = ".." }),
		"a user":            exec(func(r *agboxv1.CreateExecRequest) { r.User = "a b" }),
		"an empty selector": &agboxv1.DeleteSandboxesRequest{},
		"signal 0":          &agboxv1.SignalExecRequest{ExecId: "x"},
		"a sandbox name":    &agboxv1.CreateSpec{Image: "i", Name: "../x"},
		"a tiny idle time":  &agboxv1.CreateSandboxRequest{SandboxId: "-"},
	} {
		if err := s.check(req); !errdefs.IsInvalidArgument(err) || !strings.HasSuffix(err.Error(), ".") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.check(exec(func(*agboxv1.CreateExecRequest) {})); err != nil {
		t.Errorf("a good request: %v", err)
	}
}

func TestAllProblemsOfASpecReachTheCaller(t *testing.T) {
	s := bare(t)
	req := &agboxv1.CreateSandboxRequest{
		ConfigPath: "box.yaml", ConfigYaml: []byte("imagee: x\nmemory_limit: 1x\nports: [" + strings.Repeat("x,", 20) + "]\n"),
		CreateSpec: &agboxv1.CreateSpec{Name: "Bad Name"},
	}
	if err := s.check(req); err != nil {
		t.Errorf("the guard says it before: %v", err)
	}
	calls := &sandboxCalls{admission: admission.New(admission.Options{Rules: s.rules, Log: s.log})}
	_, err := calls.CreateSandbox(t.Context(), req)
	st, _ := status.FromError(s.status("CreateSandbox", err))
	lines := strings.Split(st.Message(), "\n")
	if st.Code() != codes.InvalidArgument || len(lines) != admission.MaxTold+1 || !strings.HasPrefix(lines[0], "box.yaml:1:1: imagee: ") || !strings.Contains(lines[admission.MaxTold], "13 more problems") {
		t.Errorf("%v", st)
	}
	detail := new(agboxv1.ResolveSpecResponse)
	if err := st.Proto().GetDetails()[1].UnmarshalTo(detail); err != nil || len(detail.GetProblems()) != admission.MaxTold || detail.GetProblems()[1].GetField() != "memory_limit" {
		t.Errorf("details %v", st.Details())
	}
	resp, err := calls.ResolveSpec(t.Context(), &agboxv1.ResolveSpecRequest{Create: req})
	if err != nil || resp.GetCreateSpec() != nil || len(resp.GetProblems()) != 23 || resp.GetProblems()[22].GetField() != "name" {
		t.Errorf("ResolveSpec: %v, %v", resp, err)
	}
}

func TestPanicBecomesAnErrorOfOneCall(t *testing.T) {
	s := bare(t)
	err := s.stream(nil, endless{}, &grpc.StreamServerInfo{}, func(any, grpc.ServerStream) error {
		var nobody *agboxv1.CreateSpec
		return errors.New(nobody.Image)
	})
	if st, _ := status.FromError(err); st.Code() != codes.Internal || strings.Contains(st.Message(), "nil pointer") {
		t.Errorf("a panic became %v", err)
	}
}

func TestAPageOfExecsEndsBeforeItIsTooLong(t *testing.T) {
	long := func(n int) *agboxv1.ExecStatus { return &agboxv1.ExecStatus{Command: []string{strings.Repeat("x", n)}} }
	for want, list := range map[int][]*agboxv1.ExecStatus{
		0: {},
		1: {long(900), long(200)},
		2: {long(400), long(400), long(400)},
		3: {long(300), long(300), long(300)},
	} {
		if got := fitting(list, 1000); got != want {
			t.Errorf("%d of %d fit, want %d", got, len(list), want)
		}
	}
	if got := fitting([]*agboxv1.ExecStatus{long(2000), long(1)}, 1000); got != 1 {
		t.Errorf("of one that is too long %d fit, want 1", got)
	}
}
