package main

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// upOptions are the flags of agbox up. name is also a flag of agbox down.
type upOptions struct {
	createOptions
	name        string
	recreate    bool
	noWorkspace bool
	// says is what to say about the folder when the sandbox is made.
	says string
	// kept are the fields that flags set when the sandbox was made, and that none sets now.
	kept []string
}

// asked reports whether the sandbox of a folder is to be made anew: if it differs from what
// would be made now, and the flag or a person on the terminal says so. Elsewhere a
// difference is an error.
func (o *upOptions) asked(ctx context.Context, a *app, c *client.Client, input *client.SpecInput, found *agboxv1.GetSandboxResponse) (anew bool, err error) {
	h := found.GetSandbox()
	out, err := c.ResolveSpec(ctx, input.Request)
	switch {
	case hasCode(err, codes.Unimplemented):
		return false, nil // an old daemon cannot say
	case err != nil:
		return false, err
	case out.GetCreateSpec() == nil:
		for _, p := range out.GetProblems() {
			a.say("%s", problemLine(p))
		}
		a.say("Sandbox %s stays as it was made. `agbox start %[1]s` starts it.", h.GetName())
		return false, errSpecTold
	}
	now, made := out.GetCreateSpec(), proto.CloneOf(found.GetCreateSpec())
	for _, name := range o.kept {
		copyField(now.ProtoReflect(), made.ProtoReflect(), protoreflect.Name(name))
	}
	for _, label := range []string{flagsLabel, folderLabel, folderIDLabel} { // the folder is this one
		delete(now.GetLabels(), label)
		delete(made.GetLabels(), label)
	}
	changed := differs(now, made)
	if changed == "" || o.recreate {
		return changed != "", nil
	}
	text := fmt.Sprintf("Sandbox %s was made from another version of the file, or with other flags (%s).", h.GetName(), changed)
	if len(o.kept) > 0 { // the sandbox has more than those flags said
		return false, &client.Error{Code: codes.FailedPrecondition, Message: text + fmt.Sprintf(" `agbox up --recreate` makes it anew, but give the flags again that it was made with (%s). `agbox start %s` starts it as it is.", strings.Join(o.kept, ", "), h.GetName())}
	}
	if a.terminal() == nil {
		return false, &client.Error{Code: codes.FailedPrecondition, Message: text + fmt.Sprintf(" `agbox up --recreate` makes it anew, `agbox start %s` starts it as it is.", h.GetName())}
	}
	a.say("%s", text)
	return a.confirm(ctx, "Remove it, with all that is in it, and make it anew?")
}

// fromFile is the word among the fields of given for a file.
const fromFile = "file"

// given names the fields of the spec that flags set, and whether flags name files.
func (o *upOptions) given(a *app) ([]string, error) {
	o.quiet = true // making the sandbox says the same
	spec, err := o.fields(a)
	o.quiet = false
	if err != nil {
		return nil, err
	}
	var names []string
	spec.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		names = append(names, string(f.Name()))
		return true
	})
	if spec.GetSecretEnvs() != nil { // they are among the variables of a sandbox
		names = append(names, "envs")
	}
	if o.noWorkspace {
		names = append(names, "workspace")
	}
	if o.file+o.composePrimary != "" || len(o.composes)+len(o.devcontainers)+len(o.profiles) > 0 {
		names = append(names, fromFile)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// keep leaves what the flags have set that made a sandbox, and that are not given now. It
// reports whether they said what the sandbox is made from: then nothing can be compared.
func (o *upOptions) keep(made *agboxv1.CreateSpec, given []string) (whole bool) {
	for name := range strings.SplitSeq(made.GetLabels()[flagsLabel], ",") {
		if name == "" || slices.Contains(given, name) {
			continue
		}
		o.kept = append(o.kept, name)
		switch name {
		case "workspace":
			o.noWorkspace = true // what it has stays
		case fromFile, "image", "build":
			whole = true
		}
	}
	return whole
}

// copyField makes a field of a message the same as in another one of its type.
func copyField(to, from protoreflect.Message, name protoreflect.Name) {
	f := to.Descriptor().Fields().ByName(name)
	switch {
	case f == nil:
	case from.Has(f):
		to.Set(f, from.Get(f))
	default:
		to.Clear(f)
	}
}

// differs names the fields in which a sandbox differs from what would be made now; "" if
// there are none. Secret values are not compared.
func differs(now, made *agboxv1.CreateSpec) string {
	now, made = proto.CloneOf(now), proto.CloneOf(made)
	if made.GetSourcesResolved() {
		followLinks(now.ProtoReflect())
		followLinks(made.ProtoReflect()) // in the old place of what was moved there may be a link
	}
	now.SourcesResolved, made.SourcesResolved = false, false
	hide := func(now, made map[string]string) {
		for name, value := range made {
			if _, set := now[name]; set && value == "(secret)" {
				now[name] = value
			}
		}
	}
	hide(now.GetEnvs(), made.GetEnvs())
	for i, s := range made.GetServices() {
		if i < len(now.GetServices()) {
			hide(now.GetServices()[i].GetEnvs(), s.GetEnvs())
		}
	}
	var names []string
	fields := now.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if is, was := now.ProtoReflect(), made.ProtoReflect(); is.Has(f) != was.Has(f) || !is.Get(f).Equal(was.Get(f)) {
			names = append(names, string(f.Name()))
		}
	}
	return strings.Join(names, ", ")
}

// hostPaths are the fields whose links the daemon resolves when it stores a spec.
var hostPaths = map[protoreflect.FullName]bool{
	"agbox.v1.MountSpec.source": true, "agbox.v1.CopySpec.source": true, "agbox.v1.WorkspaceSpec.source": true,
	"agbox.v1.FeatureSpec.source": true, "agbox.v1.BuildSpec.context": true, "agbox.v1.AgentSpec.work": true,
}

// followLinks resolves the symbolic links of the paths of the host in a spec.
func followLinks(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				followLinks(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			followLinks(v.Message())
		case hostPaths[f.FullName()] && v.String() != "":
			m.Set(f, protoreflect.ValueOfString(resolvedLinks(v.String())))
		}
		return true
	})
}

// workspaceTarget is where a workspace is in a sandbox that names no other place.
const workspaceTarget = "/workspace"

// bringFolder adds the folder to a request as a copied workspace, unless the request has a
// workspace, brings the folder in otherwise, or wants none. It returns what to say when the
// sandbox is made.
func (o *upOptions) bringFolder(ctx context.Context, c *client.Client, input *client.SpecInput, folder, name string) (say string, err error) {
	given := input.Request.GetCreateSpec()
	if o.noWorkspace || given.GetWorkspace().GetSource() != "" || wantsNoWorkspace(input.Request) {
		return "", nil
	}
	with := given.GetWorkspace() // flags about what to leave out
	given.Workspace = nil
	before, _, err := resolveQuietly(ctx, c, input.Request)
	if err != nil || before == nil || before.GetWorkspace() != nil || hasFolder(before, folder) {
		given.Workspace = with
		return "", err // creating the sandbox reports the problems
	}
	if given.Workspace = with; with == nil {
		given.Workspace = new(agboxv1.WorkspaceSpec)
	}
	if why := noRoom(before); why != "" {
		given.Workspace = nil
		return copiesNothing(why), nil
	}
	w := given.GetWorkspace()
	// What the main command finds in its image stays where the command expects it.
	w.Source, w.Mount, w.KeepCommandDir = folder, proto.Bool(false), proto.Bool(true)
	after, problem, err := resolveQuietly(ctx, c, input.Request)
	switch {
	case err != nil:
		return "", err
	case after == nil && with == nil:
		given.Workspace = nil
		return copiesNothing(problem), nil
	case after == nil:
		return "", nil // creating the sandbox reports the problems
	}
	return "Copying this folder to " + workspaceTarget + " in the sandbox. `agbox diff " + name + "` shows what changes there, `agbox apply " + name + "` brings it back. --no-workspace copies nothing.", nil
}

func copiesNothing(why string) string {
	return "This folder is not copied into the sandbox. " + why + " `agbox up --workspace DIR:TARGET` copies a folder to another place, --no-workspace copies none."
}

// noRoom says why nothing can be copied to the usual place of a workspace; "" if it can. A
// copy to a place within a writable mount would change the host.
func noRoom(s *agboxv1.CreateSpec) string {
	if s.GetSecurity().GetReadOnlyRoot() {
		return "The root of the sandbox is read-only."
	}
	targets := slices.Concat(
		collect(s.GetMounts(), (*agboxv1.MountSpec).GetTarget), collect(s.GetCopies(), (*agboxv1.CopySpec).GetTarget),
		collect(s.GetVolumes(), (*agboxv1.VolumeSpec).GetTarget), collect(s.GetTmpfs(), (*agboxv1.TmpfsSpec).GetTarget),
	)
	for _, target := range targets {
		if target = path.Clean(target); within(target, workspaceTarget) || within(workspaceTarget, target) {
			return "The file puts something else at " + printable(target) + "."
		}
	}
	return ""
}

// within reports whether a clean absolute path is a folder or below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// wantsNoWorkspace reports whether a devcontainer.json says that there is no workspace.
func wantsNoWorkspace(in *agboxv1.CreateSandboxRequest) bool {
	return slices.ContainsFunc(in.GetBaseFiles(), func(file *agboxv1.ConfigFile) bool {
		if file.GetFormat() != agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER {
			return false
		}
		node := document.JSONC("", file.GetContent(), new(document.Report))
		if node == nil {
			return false
		}
		mount := node.Get("workspaceMount")
		return mount != nil && mount.Text == ""
	})
}

// hasFolder reports whether the primary mounts a folder, gets a copy of it, or has it in
// what it mounts or gets a copy of.
func hasFolder(s *agboxv1.CreateSpec, folder string) bool {
	sources := slices.Concat(collect(s.GetMounts(), (*agboxv1.MountSpec).GetSource), collect(s.GetCopies(), (*agboxv1.CopySpec).GetSource))
	return slices.ContainsFunc(sources, func(path string) bool { return within(resolvedLinks(folder), resolvedLinks(path)) })
}
