package spec

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Ahead returns what of a resolved spec is made before anybody asks for it: without what the supervisor can
// be told, and what is copied and run, later. Requests whose specs differ only in that get the same; with
// prepare, the environment must be equal too. why says why nothing can be made ahead; it is empty if something can.
func Ahead(resolved *agboxv1.CreateSpec) (made *agboxv1.CreateSpec, why string) {
	switch {
	case resolved.GetPublished():
		return nil, "its client chooses the id of the sandbox"
	case resolved.GetDerived() != nil:
		return nil, "it is derived from the sandbox of an agent"
	case len(resolved.GetMounts()) > 0, resolved.GetWorkspace().GetMount(), resolved.GetMatchUser() != "", slices.ContainsFunc(resolved.GetToolProjections(), isMounted):
		return nil, "what is mounted of this machine may be something else when somebody asks for it"
	case resolved.GetBuild() != nil:
		return nil, "its image is built from files that may change"
	case resolved.GetPullPolicy() == agboxv1.PullPolicy_PULL_POLICY_ALWAYS:
		return nil, "pull_policy always asks the registry for each sandbox"
	}
	ports := resolved.GetPorts()
	for _, s := range resolved.GetServices() {
		ports = slices.Concat(ports, s.GetPorts())
		switch {
		case len(s.GetPostStartOnPrimary()) > 0:
			return nil, "commands after the start of service " + s.GetName() + " (post_start_on_primary) may need the workspace"
		case len(s.GetCopies()) > 0:
			return nil, "files that are copied to service " + s.GetName() + " may change"
		case s.GetBuild() != nil:
			return nil, "the image of service " + s.GetName() + " is built from files that may change"
		case s.GetPullPolicy() == agboxv1.PullPolicy_PULL_POLICY_ALWAYS:
			return nil, "pull_policy always asks the registry for each sandbox"
		}
	}
	if slices.ContainsFunc(ports, func(p *agboxv1.PortMapping) bool { return p.GetHostPort() != 0 }) {
		return nil, "only one sandbox can have a port of the host that is given"
	}
	made = proto.CloneOf(resolved)
	if len(made.GetPrepare()) > 0 { // its commands see the environment
		made.Envs = make(map[string]string)
		for _, p := range resolved.GetToolProjections() {
			maps.Copy(made.Envs, p.GetEnvs())
		}
		maps.Copy(made.Envs, resolved.GetEnvs())
	} else {
		made.Envs, made.SecretEnvs = nil, nil
	}
	made.Name, made.Labels = "", nil
	made.Copies, made.PostCreate, made.Agent = nil, nil, nil
	made.Command, made.Entrypoint, made.WorkingDir, made.User = nil, nil, "", ""
	made.Workspace, made.SourcesResolved = nil, false
	// Tools that are copied come later. Caches are the same for all.
	made.BuiltinTools = nil
	made.ToolProjections = slices.DeleteFunc(made.ToolProjections, func(p *agboxv1.ToolProjection) bool {
		return p.GetKind() != agboxv1.ProjectionKind_PROJECTION_KIND_CACHE
	})
	// The keeper of the pool decides how long it waits.
	made.IdleTtl, made.CleanupTtl = durationpb.New(0), durationpb.New(0)
	made.IdleAction, made.Revival = 0, agboxv1.RevivalPolicy_REVIVAL_POLICY_FAIL
	return made, ""
}

func isMounted(p *agboxv1.ToolProjection) bool {
	return p.GetKind() == agboxv1.ProjectionKind_PROJECTION_KIND_MOUNT
}
