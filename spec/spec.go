// Package spec makes the description of a sandbox out of what a caller gave: a
// sandbox file (agbox.yaml), files of other tools below it, and fields above it.
// It merges them, fills in what paths are relative to, and tells all that is
// wrong at once, each with its file, line and field and what to do.
//
// The package reads no files and asks nobody: it works on what it is given. That
// the sources of mounts exist, and are what they seem, is for the caller to check.
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

// DefaultName is how a sandbox file is called, and named when the caller does not.
const DefaultName = "agbox.yaml"

// Validator holds a message against the rules in the .proto files.
type Validator interface {
	Validate(proto.Message, ...protovalidate.ValidationOption) error
}

// Input is what a sandbox is made of.
type Input struct {
	// Request has the files and the fields.
	Request *agboxv1.CreateSandboxRequest
	Rules   Validator
	// Own are agbox's own folders on the host, which no sandbox may mount.
	Own []string
}

// Result is what became of an Input.
type Result struct {
	// Spec is what is to be stored; nil when there are problems.
	Spec *agboxv1.CreateSpec
	// Problems are all that is wrong, in the order of the files.
	Problems []*agboxv1.SpecProblem
	// Notices name what has no meaning here, or another one than in its own tool.
	Notices []*agboxv1.SpecProblem
	from    *resolver
}

// Origin is where a field of the spec comes from, for problems that are only
// found elsewhere: names of fields and indexes of lists, outermost first.
func (r *Result) Origin(path ...any) *document.Origin { return locate(r.from.origin, path...) }

// Draft is the spec as it was merged, also where it has problems, so that what the
// caller finds is told together with them. It is nil where too little could be read
// for that, or far too much.
func (r *Result) Draft() *agboxv1.CreateSpec {
	if r.from.unreadable || r.from.overlong {
		return nil
	}
	return r.from.spec
}

// Problem adds what only the caller could find, for example that a folder is
// missing, at a field of the spec as Origin has it. There is no Spec from then on.
func (r *Result) Problem(path []any, format string, args ...any) {
	r.from.problem(path, format, args...)
	*r = *r.from.result()
}

// Notice adds what is not wrong, as Problem does.
func (r *Result) Notice(path []any, format string, args ...any) {
	r.from.report.Notice(r.Origin(path...), format, args...)
	*r = *r.from.result()
}

// Resolve merges and checks. The files come first, each overriding the ones
// before it, then the fields, by the rules of document.Merge.
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
	r.add(fields, document.Describe(fields.ProtoReflect(), &document.Origin{}), req.GetConfigDir())
	r.dropRedundant()
	if !r.unreadable {
		r.check()
	}
	return r.result()
}

// filledIn refuses fields that are the daemon's: what they say goes unchecked.
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

// removedAfter is how long a sandbox may be idle that is to be removed then, where
// nobody says how long: time to come back to it after a lost connection.
const removedAfter = time.Minute

// dropRedundant takes out what only had to override something: a false that is the
// default anyway. It fills in what follows from other fields.
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
	// order are the names of the files, as they override each other.
	order []string
	// unreadable tells that a file is missing from the spec, so that what the whole
	// lacks says nothing.
	unreadable bool
	// overlong tells that a list has more items than anybody should go through.
	overlong bool
	// noPrimary tells that a compose file was read of which no service is the primary.
	noPrimary bool
	// imageTold tells that it was said why there is no image.
	imageTold bool
	// unbuilt says that a base file has no image for the primary but would build one;
	// instead is what a file or field over it names, if any.
	unbuilt func(instead string)
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

// add merges one layer, whose relative paths belong to a folder.
func (r *resolver) add(layer *agboxv1.CreateSpec, at *document.Origin, dir string) {
	r.absolute(layer, at, dir)
	if at.File != "" {
		// What is missing altogether is missed in the last file.
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

// rank tells when a file is read: the later, the more it overrides.
func (r *resolver) rank(file string) int {
	if i := slices.Index(r.order, file); i >= 0 {
		return i
	}
	if file == "" {
		return len(r.order) + 1
	}
	return len(r.order)
}

// before tells whether something was written before something else.
func (r *resolver) before(a, b []any) int {
	x, y := locate(r.origin, a...), locate(r.origin, b...)
	return cmp.Or(cmp.Compare(r.rank(x.File), r.rank(y.File)), cmp.Compare(x.Line, y.Line), cmp.Compare(x.Column, y.Column))
}

// locate finds where a field comes from. What was not written has the place of
// what it would stand in.
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

// dirOf is the folder of a base file.
func dirOf(file *agboxv1.ConfigFile) string {
	if dir := filepath.Dir(file.GetPath()); filepath.IsAbs(dir) {
		return dir
	}
	return ""
}
