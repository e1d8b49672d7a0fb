package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// asked reports whether the sandbox of a folder is to be made anew: if it differs from what
// would be made now, and the flag or a person on the terminal says so. Elsewhere a
// difference is an error.
func (o *upOptions) asked(ctx context.Context, a *app, c *client.Client, input *client.SpecInput, found *agboxv1.GetSandboxResponse) (anew bool, err error) {
	h := found.GetSandbox()
	out, err := c.ResolveSpec(ctx, input.Request)
	var failure *client.Error
	switch {
	case errors.As(err, &failure) && failure.Code == codes.Unimplemented:
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
