package server

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime/guest/wire"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
)

// resolve merges the files of a request with its spec and checks the result.
func (s *Server) resolve(req *agboxv1.CreateSandboxRequest) *spec.Result {
	return spec.Resolve(spec.Input{
		Request: req, Rules: s.rules,
		Own: []string{s.Paths.Data, s.Paths.Config, s.Paths.Run},
	})
}

// accept is the spec that a result holds, or an error that tells all that is wrong
// with it.
func accept(result *spec.Result) (*agboxv1.CreateSpec, error) {
	if len(result.Problems) > 0 {
		return nil, wrongSpec(result.Problems)
	}
	return result.Spec, nil
}

// ResolveSpec says what CreateSandbox would make of a request.
func (s *Server) ResolveSpec(ctx context.Context, req *agboxv1.ResolveSpecRequest) (*agboxv1.ResolveSpecResponse, error) {
	result := s.resolve(req.GetCreate())
	s.feasible(ctx, result)
	s.hostSide(req.GetCreate(), result)
	return &agboxv1.ResolveSpecResponse{CreateSpec: result.Spec, Problems: result.Problems, Notices: result.Notices}, nil
}

// specError is a spec with problems. They go to programs as a detail of the status.
type specError struct {
	fault    *fault.Error
	problems []*agboxv1.SpecProblem
}

func (e *specError) Error() string { return e.fault.Error() }

// Unwrap shows the fault, which has class and reason.
func (e *specError) Unwrap() error { return e.fault }

// maxTold bounds the problems in one status: some clients take headers of a few
// kilobytes only. ResolveSpec tells all.
const maxTold = 10

func wrongSpec(problems []*agboxv1.SpecProblem) error {
	told := problems[:min(len(problems), maxTold)]
	lines := make([]string, 0, len(told)+1)
	for _, p := range told {
		lines = append(lines, document.Line(p))
	}
	if more := len(problems) - len(told); more > 0 {
		lines = append(lines, fmt.Sprintf("There are %d more problems: `agbox config validate` tells all.", more))
	}
	f := fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "%s", strings.Join(lines, "\n"))
	return &specError{fault: f.With("problems", strconv.Itoa(len(problems))), problems: told}
}

// checkArgs refuses what the kernel would refuse, before anything is recorded.
func checkArgs(req *agboxv1.CreateExecRequest) error {
	env := make([]string, 0, len(req.GetEnvOverrides()))
	for key, value := range req.GetEnvOverrides() {
		env = append(env, key+"="+value)
	}
	if err := wire.CheckArguments(req.GetCommand(), env); err != nil {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_COMMAND_TOO_LONG,
			"The command cannot be started: %v. Pass the data in a file instead.", err)
	}
	return nil
}
