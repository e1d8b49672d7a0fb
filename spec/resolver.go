package spec

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// Validator checks a message against the rules in the .proto files.
type Validator interface {
	Validate(proto.Message, ...protovalidate.ValidationOption) error
}

// Input is the description of a sandbox by its caller.
type Input struct {
	// Request has the files and the fields.
	Request *agboxv1.CreateSandboxRequest
	Rules   Validator
	// Host says what must not leave the host. Its Home is ignored: Request has it.
	Host Host
	// CheckAgent checks the figures of the agent. nil leaves that out.
	CheckAgent CheckAgent
}

// Host is what the rule about sources knows of the host and of its user.
type Host struct {
	// Own are agbox's own folders, Binaries its programs.
	Own, Binaries []string
	// Home is the home that the caller names, or empty.
	Home string
	// Homes are the homes of the daemon's user, who is the only user of the daemon. What is
	// in them does not belong to others, even if they are below /var.
	Homes []string
	// Granted are folders that the operator's policy opens, even if they are folders of the
	// system or in a home of others.
	Granted []string
}

// CheckAgent reports the figures of an agent that do not fit together. path begins in the
// AgentSpec and is as for Result.Origin.
type CheckAgent func(s *agboxv1.AgentSpec, problem func(path []any, format string, args ...any))

// Result is the result of Resolve.
type Result struct {
	// Spec is what will be stored, or nil if there are problems.
	Spec *agboxv1.CreateSpec
	// Problems are all problems, in the order of the files.
	Problems []*agboxv1.SpecProblem
	// Notices name settings that have no effect here, or another effect than in their own
	// tool.
	Notices []*agboxv1.SpecProblem
	from    *resolver
}

// Origin returns where a field of the spec comes from, for problems that the caller
// finds. path has names of fields and indexes of lists, outermost first.
func (r *Result) Origin(path ...any) *document.Origin { return locate(r.from.origin, path...) }

// Draft returns the merged spec even if it has problems, so that the caller can report
// its own problems together with these. It is nil if too much was unreadable, or if a
// list is far too long.
func (r *Result) Draft() *agboxv1.CreateSpec {
	if r.from.unreadable || r.from.overlong {
		return nil
	}
	return r.from.spec
}

// Problem adds a problem that only the caller can find, for example that a folder is
// missing. path is as for Origin. Spec is nil afterwards.
func (r *Result) Problem(path []any, format string, args ...any) {
	r.from.problem(path, format, args...)
	*r = *r.from.result()
}

// Notice adds a notice. path is as for Origin.
func (r *Result) Notice(path []any, format string, args ...any) {
	r.from.report.Notice(r.Origin(path...), format, args...)
	*r = *r.from.result()
}

// resolver is one run of Resolve.
type resolver struct {
	Input
	report *document.Report
	spec   *agboxv1.CreateSpec
	origin *document.Origin
	// order are the names of the files in the order in which they override each other.
	order []string
	// unreadable means that a file is missing from the spec, so missing fields are not
	// reported.
	unreadable bool
	// overlong means that a list has too many items to check.
	overlong bool
	// noPrimary means that no service of a compose file that was read is the primary.
	noPrimary bool
	// imageTold means that the reason for the missing image was reported.
	imageTold bool
}

func (r *resolver) yaml(name string, content []byte) *document.Node {
	node := document.YAML(name, content, r.report)
	if node != nil && node.Kind != document.Map && node.Kind != document.Null {
		r.report.Problem(&document.Origin{File: name, Line: node.Line, Column: node.Column},
			"Here should be a map of fields, such as 'image: debian:12', and there is something else")
		node = nil
	}
	if node == nil {
		r.unreadable = true
	}
	return node
}

// problem reports the field at a path of the merged spec.
func (r *resolver) problem(path []any, format string, args ...any) {
	r.report.Problem(locate(r.origin, path...), format, args...)
}

// whereIs names a path of the spec for a sentence.
func (r *resolver) whereIs(path []any) string {
	at := locate(r.origin, path...)
	switch {
	case at.File == "":
		return at.Path
	case at.Line == 0:
		return at.File
	}
	return at.File + ":" + strconv.Itoa(at.Line)
}

// fromFile reports whether a field comes from a file and not from the caller.
func (r *resolver) fromFile(path []any) bool { return locate(r.origin, path...).File != "" }

func (r *resolver) result() *Result {
	byOrder := func(a, b *agboxv1.SpecProblem) int {
		return cmp.Or(cmp.Compare(r.rank(a.GetFile()), r.rank(b.GetFile())), cmp.Compare(a.GetLine(), b.GetLine()), cmp.Compare(a.GetColumn(), b.GetColumn()))
	}
	slices.SortStableFunc(r.report.Problems, byOrder)
	slices.SortStableFunc(r.report.Notices, byOrder)
	out := &Result{Problems: r.report.Problems, Notices: r.report.Notices, from: r}
	if len(out.Problems) == 0 {
		out.Spec = r.spec
	}
	return out
}

// rank returns the position of a file in order. Later files override earlier ones.
func (r *resolver) rank(file string) int {
	if i := slices.Index(r.order, file); i >= 0 {
		return i
	}
	if file == "" {
		return len(r.order) + 1
	}
	return len(r.order)
}

// before reports whether a was written before b.
func (r *resolver) before(a, b []any) int {
	x, y := locate(r.origin, a...), locate(r.origin, b...)
	return cmp.Or(cmp.Compare(r.rank(x.File), r.rank(y.File)), cmp.Compare(x.Line, y.Line), cmp.Compare(x.Column, y.Column))
}

// locate finds where a field comes from. For an unset field it returns the origin of the
// nearest parent.
func locate(o *document.Origin, path ...any) *document.Origin {
	for i, step := range path {
		var child *document.Origin
		switch step := step.(type) {
		case string:
			child = o.Fields[step]
		case int:
			if step < len(o.Items) {
				child = o.Items[step]
			}
		}
		if child == nil {
			return o.Under(pathBelow(o.Path, path[i:]))
		}
		o = child
	}
	return o
}

func pathBelow(path string, steps []any) string {
	for _, step := range steps {
		switch step := step.(type) {
		case string:
			path = document.Child(path, step)
		case int:
			path = document.Item(path, step)
		}
	}
	return path
}

// dirOf returns the folder of a base file.
func dirOf(file *agboxv1.ConfigFile) string {
	if dir := filepath.Dir(file.GetPath()); filepath.IsAbs(dir) {
		return dir
	}
	return ""
}
