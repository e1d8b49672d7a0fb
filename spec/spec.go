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

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// DefaultName is the usual name of a sandbox file, and its name in messages by default.
const DefaultName = "agbox.yaml"

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

// ResolveAgent merges the agent in the spec of a sandbox that exists with the fields of an
// agent, which override it, and checks the result, which is the agent of Result.Spec. It
// ignores the request of the input. What the sandbox has from before some names of variables were
// refused is as in WithoutOwnEnvs.
func ResolveAgent(in Input, sandbox *agboxv1.CreateSpec, fields *agboxv1.AgentSpec) *Result {
	in.Request = new(agboxv1.CreateSandboxRequest)
	r := &resolver{Input: in, report: new(document.Report), spec: new(agboxv1.CreateSpec), origin: &document.Origin{}}
	for _, layer := range []*agboxv1.CreateSpec{{Agent: WithoutOwnEnvs(sandbox.GetAgent())}, {Agent: fields}} {
		layer = proto.CloneOf(layer) // add makes paths absolute in it
		r.add(layer, document.Describe(layer.ProtoReflect(), &document.Origin{}), "")
	}
	r.spec.Security, r.spec.Services = sandbox.GetSecurity(), sandbox.GetServices()
	r.agent()
	r.work()
	r.rules()
	return r.result()
}

// bases reads the key "base" of the sandbox file. It finds the files that the key names
// among those of the request, and returns the entries of the key.
func (r *resolver) bases(name string, config *document.Node) []document.BaseFile {
	given := make([]document.BaseFile, len(r.Request.GetBaseFiles()))
	if config == nil || config.Kind != document.Map {
		return given
	}
	named := document.TakeBases(name, config, r.report)
	for _, b := range named {
		file := b.File
		if !filepath.IsAbs(file) {
			file = filepath.Join(r.Request.GetConfigDir(), file)
		}
		i := slices.IndexFunc(r.Request.GetBaseFiles(), func(f *agboxv1.ConfigFile) bool { return filepath.Clean(f.GetPath()) == filepath.Clean(file) })
		if i < 0 {
			r.unreadable = true
			r.report.Problem(b.At, "The base file %s did not come with the request: send its content in base_files, or leave it out", file)
			continue
		}
		given[i] = b
	}
	return given
}

// base reads one base file and merges it. The settings of its entry take precedence.
func (r *resolver) base(file *agboxv1.ConfigFile, said document.BaseFile) {
	r.order = append(r.order, file.GetPath())
	format := said.Format
	if format == 0 {
		format = file.GetFormat()
	}
	if format == 0 {
		format = document.FormatOf(file.GetPath())
	}
	primary := said.Primary
	if primary == "" {
		primary = file.GetPrimary()
	}
	whole := &document.Origin{File: file.GetPath(), Line: 1}
	if primary != "" && format != agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE {
		r.report.Problem(whole, "%q was named as its primary service, and the file is not a compose file: leave primary out", primary)
	}
	switch format {
	case agboxv1.ConfigFormat_CONFIG_FORMAT_AGBOX:
		r.agboxBase(file)
	case agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER:
		r.devcontainer(file)
	case agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE:
		r.compose(file, primary, nil)
	default:
		r.unreadable = true
		r.report.Problem(whole, "The name of the file does not tell what it is: call it devcontainer.json or compose.yaml, or write its format")
	}
}

func (r *resolver) agboxBase(file *agboxv1.ConfigFile) {
	node := r.yaml(file.GetPath(), file.GetContent())
	if node == nil {
		return
	}
	if e := node.Take("base"); e.Key != nil {
		reader := document.Reader{File: file.GetPath()}
		r.report.Problem(reader.At(e.Key, "base"), "A base cannot have a base of its own: name all of them in the sandbox file")
	}
	layer, at := r.agboxFile(file.GetPath(), node)
	r.add(layer, at, dirOf(file))
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
