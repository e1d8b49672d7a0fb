package admission

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// Error returns the sentence about all problems.
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

// publishedRules adds the problems that a spec has by the published contract and not by ours.
func publishedRules(result *spec.Result) {
	s := result.Draft()
	if s == nil {
		return
	}
	for i, p := range s.GetPorts() {
		if p.GetHostPort() == 0 {
			result.Problem([]any{"ports", i, "host_port"}, "host_port must be between 1 and 65535")
		}
	}
	noEmptyWords(result, s.GetCommand())
	for i, c := range s.GetServices() {
		noEmptyWords(result, c.GetCommand(), "services", i)
		if len(c.GetPostStartOnPrimary()) > 0 && c.GetHealthcheck() == nil {
			result.Problem([]any{"services", i, "post_start_on_primary"}, "Companion container %.80q with post_start_on_primary must define healthcheck", c.GetName())
		}
	}
	for i, c := range s.GetCopies() {
		at := path.Clean(c.GetTarget())
		if slices.ContainsFunc(s.GetMounts(), func(m *agboxv1.MountSpec) bool { return path.Clean(m.GetTarget()) == at }) {
			result.Problem([]any{"copies", i, "target"}, "A mount has the target %.200s already: choose another one for the copy", at)
		}
	}
}

// noEmptyWords refuses empty words of a command but the first, which all clients are refused.
func noEmptyWords(result *spec.Result, command []string, at ...any) {
	for i, word := range command {
		if word == "" && i > 0 {
			result.Problem(append(slices.Clone(at), "command", i), "A word of the command is empty: remove it")
		}
	}
}

// inPublishedWords names the fields of problems as the published contract does: its clients
// call services companion containers.
func inPublishedWords(problems []*agboxv1.SpecProblem) []*agboxv1.SpecProblem {
	renamed := make([]*agboxv1.SpecProblem, 0, len(problems))
	for _, p := range problems {
		renamed = append(renamed, &agboxv1.SpecProblem{
			File: p.GetFile(), Line: p.GetLine(), Column: p.GetColumn(),
			Field: companions(p.GetField()), Message: companions(p.GetMessage()),
		})
	}
	return renamed
}

func companions(text string) string {
	return strings.ReplaceAll(text, "services[", "companion_containers[")
}
