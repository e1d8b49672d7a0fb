package spec

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// later are the fields that come when somebody asks for a sandbox, and that may differ between those who
// get one that was made ahead. refused are those with which nothing is made ahead.
var (
	later = []string{
		"name", "labels", "envs", "secret_envs", "copies", "workspace", "post_create", "agent", "command", "entrypoint", "working_dir", "user",
		"builtin_tools", "tool_projections", "idle_ttl", "idle_action", "cleanup_ttl", "revival",
		"sources_resolved", // unless something is mounted
	}
	refused = []string{"build", "published", "derived", "mounts", "match_user"}
)

// TestEachFieldIsMadeAheadOrLater fails for a new field until somebody has decided.
func TestEachFieldIsMadeAheadOrLater(t *testing.T) {
	plain, _ := Ahead(new(agboxv1.CreateSpec))
	fields := new(agboxv1.CreateSpec).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		resolved := new(agboxv1.CreateSpec)
		fill(resolved.ProtoReflect(), field)
		made, why := Ahead(resolved)
		name := string(field.Name())
		switch {
		case slices.Contains(refused, name):
			if why == "" {
				t.Errorf("with %s something is made ahead", name)
			}
		case why != "":
			t.Errorf("with %s nothing is made ahead: %s", name, why)
		case slices.Contains(later, name) != proto.Equal(made, plain):
			t.Errorf("of %s there is made ahead: %v", name, made)
		}
	}
}

// fill gives a field a value that is not its zero value.
func fill(m protoreflect.Message, field protoreflect.FieldDescriptor) {
	switch {
	case field.IsMap():
		m.Mutable(field).Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfString("v"))
	case field.IsList() && field.Message() != nil:
		m.Mutable(field).List().AppendMutable()
	case field.IsList():
		m.Mutable(field).List().Append(protoreflect.ValueOfString("x"))
	case field.Message() != nil:
		m.Mutable(field)
	default:
		m.Set(field, map[protoreflect.Kind]protoreflect.Value{
			protoreflect.StringKind: protoreflect.ValueOfString("x"), protoreflect.BoolKind: protoreflect.ValueOfBool(true),
			protoreflect.Uint32Kind: protoreflect.ValueOfUint32(1), protoreflect.EnumKind: protoreflect.ValueOfEnum(1),
		}[field.Kind()])
	}
}

func TestWhatChangesNothingIsMadeAhead(t *testing.T) {
	mount := true
	const always = agboxv1.PullPolicy_PULL_POLICY_ALWAYS
	taken := []*agboxv1.PortMapping{{ContainerPort: 80, HostPort: 8080}}
	for name, resolved := range map[string]*agboxv1.CreateSpec{
		"a port that is given":              {Ports: taken},
		"a port of a service that is given": {Services: []*agboxv1.ServiceSpec{{Name: "db", Ports: taken}}},
		"a pull each time":                  {PullPolicy: always},
		"a pull of a service each time":     {Services: []*agboxv1.ServiceSpec{{Name: "db", PullPolicy: always}}},
		"a hook of a service":               {Services: []*agboxv1.ServiceSpec{{Name: "db", PostStartOnPrimary: []string{"true"}}}},
		"files of a service":                {Services: []*agboxv1.ServiceSpec{{Name: "db", Copies: []*agboxv1.CopySpec{{}}}}},
		"a mounted workspace":               {Workspace: &agboxv1.WorkspaceSpec{Mount: &mount}},
		"a tool that is mounted":            {ToolProjections: []*agboxv1.ToolProjection{{Kind: agboxv1.ProjectionKind_PROJECTION_KIND_MOUNT}}},
		"a build of a service":              {Services: []*agboxv1.ServiceSpec{{Name: "db", Build: &agboxv1.BuildSpec{}}}},
	} {
		if _, why := Ahead(resolved); why == "" {
			t.Errorf("with %s something is made ahead", name)
		}
	}
	for name, resolved := range map[string]*agboxv1.CreateSpec{
		"a cache":                  {ToolProjections: []*agboxv1.ToolProjection{{Kind: agboxv1.ProjectionKind_PROJECTION_KIND_CACHE}}},
		"a free port":              {Ports: []*agboxv1.PortMapping{{ContainerPort: 80}}},
		"a service with variables": {Services: []*agboxv1.ServiceSpec{{Name: "db", Envs: map[string]string{"A": "b"}}}},
	} {
		resolved.SourcesResolved = true
		before := proto.CloneOf(resolved)
		made, why := Ahead(resolved)
		if plain, _ := Ahead(new(agboxv1.CreateSpec)); why != "" || proto.Equal(made, plain) {
			t.Errorf("of %s nothing is made ahead: %s", name, why)
		}
		if !proto.Equal(resolved, before) {
			t.Errorf("Ahead changes a spec with %s", name)
		}
	}
}
