package admission

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
)

// SpecError is the error of a spec with problems. Programs get them as a detail of the
// status.
type SpecError struct {
	fault *fault.Error
	// Problems are the first MaxTold problems.
	Problems []*agboxv1.SpecProblem
}

func (e *SpecError) Error() string { return e.fault.Error() }

// Unwrap returns the fault, which has class and reason.
func (e *SpecError) Unwrap() error { return e.fault }

// MaxTold bounds the problems in one error, because some clients accept headers of only a
// few kilobytes. Controller.Resolve returns all problems.
const MaxTold = 10

func accepted(result *spec.Result) (*agboxv1.CreateSpec, error) {
	if len(result.Problems) > 0 {
		return nil, wrongSpec(result.Problems)
	}
	return result.Spec, nil
}

func wrongSpec(problems []*agboxv1.SpecProblem) error {
	told := problems[:min(len(problems), MaxTold)]
	lines := make([]string, 0, len(told)+1)
	for _, p := range told {
		lines = append(lines, document.Line(p))
	}
	if more := len(problems) - len(told); more > 0 {
		lines = append(lines, fmt.Sprintf("There are %d more problems: `agbox config validate` tells all.", more))
	}
	f := fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "%s", strings.Join(lines, "\n"))
	return &SpecError{fault: f.With("problems", strconv.Itoa(len(problems))), Problems: told}
}

// maxSpec is the maximum size of the resolved description of a sandbox in bytes. GetSandbox
// answers with parts of it twice, and all clients must be able to receive that.
const maxSpec = 3 << 19

func bounded(s *agboxv1.CreateSpec) error {
	if size := proto.Size(s); size > maxSpec {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"The description of the sandbox has %d KiB, and at most %d KiB are stored: put large content into files, and mount or copy them.", size>>10, maxSpec>>10)
	}
	return nil
}
