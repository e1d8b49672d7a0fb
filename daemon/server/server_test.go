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

	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/internal/fault"
)

// bare is a server with empty rooms: enough for what needs none.
func bare(t *testing.T) *Server {
	t.Helper()
	rules, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	return &Server{Options: Options{Log: slog.New(slog.DiscardHandler), Loop: new(reconcile.Loop)}, rules: rules}
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

func TestCommandOverTheKernelsLimitIsRefused(t *testing.T) {
	for name, req := range map[string]*agboxv1.CreateExecRequest{
		"one word":  {Command: []string{"echo", strings.Repeat("a", 128<<10)}},
		"all words": {Command: strings.Fields(strings.Repeat("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ", 60000))},
		"a value":   {Command: []string{"env"}, EnvOverrides: map[string]string{"A": strings.Repeat("a", 128<<10)}},
	} {
		if err := checkArgs(req); fault.ReasonOf(err) != agboxv1.ErrorReason_COMMAND_TOO_LONG {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFileAndFieldsAreMerged(t *testing.T) {
	s := bare(t)
	spec, err := accept(s.resolve(&agboxv1.CreateSandboxRequest{
		ConfigYaml: []byte("image: base\nenvs: {A: file, B: file}\ncommand: [a]\nidle_ttl: 60s\n"),
		CreateSpec: &agboxv1.CreateSpec{Image: "other", Envs: map[string]string{"B": "field"}, Command: []string{"b"}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if spec.GetImage() != "other" || spec.GetEnvs()["A"] != "file" || spec.GetEnvs()["B"] != "field" ||
		strings.Join(spec.GetCommand(), " ") != "a b" || spec.GetIdleTtl().GetSeconds() != 60 {
		t.Errorf("merged to %v", spec)
	}
}

func TestBadFilesAreRefusedWithTheirLine(t *testing.T) {
	s := bare(t)
	bomb := "image: x\nlabels:\n  a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("  b%d: &b%d [*%s]\n", i, i, strings.Repeat(map[bool]string{true: "a", false: fmt.Sprintf("b%d", i-1)}[i == 0]+",*", 8)+"a")
	}
	for name, tc := range map[string]struct{ yaml, says string }{
		"unknown key": {"image: x\nimagee: y\n", ":2:"},
		"wrong type":  {"image: x\n\nlabels: 7\n", ":3:"},
		"no image":    {"labels: {a: b}\n", "needs an image"},
		"a bomb":      {bomb, ""},
		"not YAML":    {"image: [", ""},
		"a second":    {"image: x\n---\nimage: y\n", "more than one document"},
	} {
		_, err := accept(s.resolve(&agboxv1.CreateSandboxRequest{ConfigYaml: []byte(tc.yaml)}))
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
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
	_, err := accept(s.resolve(req))
	st, _ := status.FromError(s.status("CreateSandbox", err))
	lines := strings.Split(st.Message(), "\n")
	if st.Code() != codes.InvalidArgument || len(lines) != maxTold+1 || !strings.HasPrefix(lines[0], "box.yaml:1:1: imagee: ") || !strings.Contains(lines[maxTold], "13 more problems") {
		t.Errorf("%v", st)
	}
	detail, ok := st.Details()[1].(*agboxv1.ResolveSpecResponse)
	if !ok || len(detail.GetProblems()) != maxTold || detail.GetProblems()[1].GetField() != "memory_limit" {
		t.Errorf("details %v", st.Details())
	}
	resp, err := s.ResolveSpec(t.Context(), &agboxv1.ResolveSpecRequest{Create: req})
	if err != nil || resp.GetCreateSpec() != nil || len(resp.GetProblems()) != 23 || resp.GetProblems()[22].GetField() != "name" {
		t.Errorf("ResolveSpec: %v, %v", resp, err)
	}
}

func TestWhatThisHostLacksIsToldTogetherWithTheOtherMistakes(t *testing.T) {
	resp, err := bare(t).ResolveSpec(t.Context(), &agboxv1.ResolveSpecRequest{Create: &agboxv1.CreateSandboxRequest{
		ConfigDir: t.TempDir(), ConfigYaml: []byte("imagee: x\nmounts: [\"./nosuch:/x\", \"relative\"]\nbuiltin_tools: [gitt]\nworking_dir: w\n"),
	}})
	if err != nil || resp.GetCreateSpec() != nil {
		t.Fatal(resp, err)
	}
	var got []string
	for _, p := range resp.GetProblems() {
		got = append(got, fmt.Sprintf("%d %s", p.GetLine(), p.GetField()))
	}
	if want := "1 imagee|2 mounts[0].source|2 mounts[1]|3 builtin_tools[0]|4 working_dir"; strings.Join(got, "|") != want {
		t.Errorf("got %s\nwant %s", strings.Join(got, "|"), want)
	}
}

func TestAListThatIsFarTooLongIsNotLookedForOnTheHost(t *testing.T) {
	var lines strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&lines, "  - /nosuch/%d:/x%[1]d\n", i)
	}
	resp, err := bare(t).ResolveSpec(t.Context(), &agboxv1.ResolveSpecRequest{Create: &agboxv1.CreateSandboxRequest{
		ConfigYaml: []byte("image: x\nmounts:\n" + lines.String()),
	}})
	if err != nil || len(resp.GetProblems()) != 1 || !strings.Contains(resp.GetProblems()[0].GetMessage(), "more than 256 items") {
		t.Errorf("got %.300v, %v", resp, err)
	}
}

func TestPanicBecomesAnErrorOfOneCall(t *testing.T) {
	s := bare(t)
	_, err := s.guardUnary(t.Context(), &agboxv1.PingRequest{}, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
		var nobody *agboxv1.CreateSpec
		return nobody.Image, nil
	})
	if st, _ := status.FromError(err); st.Code() != codes.Internal || strings.Contains(st.Message(), "nil pointer") {
		t.Errorf("a panic became %v", err)
	}
}
