// Package spec resolves the description of a sandbox from what a caller gave: a sandbox
// file (agbox.yaml), files of other tools that it overrides, and fields that override it.
// It merges them, resolves relative paths, and reports all problems at once, each with
// file, line and field and what to do.
//
// The package performs no I/O. The caller must check that the sources of mounts exist and
// are safe.
package spec

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// DefaultName is the usual name of a sandbox file, and its name in messages by default.
const DefaultName = "agbox.yaml"

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

// Resolve merges and checks. The files come first, each overriding those before it, then
// the fields, by the rules of document.Merge.
func Resolve(in Input) *Result {
	r := &resolver{Input: in, report: new(document.Report), spec: new(agboxv1.CreateSpec), origin: &document.Origin{}}
	req := in.Request
	name := cmp.Or(req.GetConfigPath(), DefaultName)
	var config *document.Node
	if len(req.GetConfigYaml()) > 0 {
		config = r.yaml(name, req.GetConfigYaml())
	}
	bases := r.bases(name, config)
	for i, file := range req.GetBaseFiles() {
		r.base(file, bases[i])
	}
	if config != nil {
		r.order = append(r.order, name)
		layer, at := r.agboxFile(name, config)
		r.add(layer, at, req.GetConfigDir())
	}
	fields := proto.CloneOf(req.GetCreateSpec())
	if fields == nil {
		fields = new(agboxv1.CreateSpec)
	}
	r.filledIn(fields)
	r.override(fields)
	r.add(fields, document.Describe(fields.ProtoReflect(), &document.Origin{}), req.GetConfigDir())
	r.dropRedundant()
	if !r.unreadable {
		r.check()
	}
	return r.result()
}

// filledIn refuses fields that only the daemon sets, because their content is not
// checked.
func (r *resolver) filledIn(fields *agboxv1.CreateSpec) {
	m := fields.ProtoReflect()
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if document.FilledIn(f.Name()) {
			r.report.Problem(&document.Origin{Path: string(f.Name())}, "The daemon fills %s in: leave it out", f.Name())
			m.Clear(f)
		}
		return true
	})
}

// removedAfter is the default idle_ttl of a sandbox with the idle_action remove. It is
// long enough to reconnect after a lost connection.
const removedAfter = time.Minute

// dropRedundant removes values that only had to override another one: a false that is the
// default anyway. It also sets defaults that depend on other fields.
func (r *resolver) dropRedundant() {
	if r.spec.GetIdleAction() == agboxv1.IdleAction_IDLE_ACTION_REMOVE && r.spec.GetIdleTtl() == nil {
		r.spec.IdleTtl = durationpb.New(removedAfter)
	}
	r.requiredElsewhere()
	drop := func(m protoreflect.Message) {
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if f.Kind() == protoreflect.BoolKind && !v.Bool() {
				m.Clear(f)
			}
			return true
		})
	}
	drop(r.spec.GetWorkspace().ProtoReflect())
	drop(r.spec.GetSecurity().ProtoReflect())
	for _, s := range r.spec.GetServices() {
		drop(s.GetSecurity().ProtoReflect())
	}
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

// add merges one layer. Its relative paths refer to dir.
func (r *resolver) add(layer *agboxv1.CreateSpec, at *document.Origin, dir string) {
	r.absolute(layer, at, dir)
	r.imageOrBuild(layer, at)
	if at.File != "" {
		// A missing field is reported in the last file.
		r.origin.File, r.origin.Line, r.origin.Column = at.File, max(at.Line, 1), max(at.Column, 1)
	}
	document.Merge(r.spec.ProtoReflect(), r.origin, layer.ProtoReflect(), at)
}

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
