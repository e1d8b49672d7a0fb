package server

import (
	"strings"

	"buf.build/go/protoyaml"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// resolveSpec merges the file of the request with its spec: scalars replace,
// maps merge by key, lists append. That is what proto.Merge does.
func (s *Server) resolveSpec(req *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSpec, error) {
	spec := new(agboxv1.CreateSpec)
	if yaml := req.GetConfigYaml(); len(yaml) > 0 {
		// Errors carry line and column; unknown fields are errors.
		if err := (protoyaml.UnmarshalOptions{Path: "agbox.yaml"}).Unmarshal(yaml, spec); err != nil {
			return nil, invalid("The sandbox file is not valid: %s", err)
		}
	}
	proto.Merge(spec, req.GetCreateSpec())
	if err := s.check(spec); err != nil {
		return nil, err
	}
	if spec.GetImage() == "" {
		return nil, invalid("A sandbox needs an image: give one, for example with --image.")
	}
	return spec, supported(spec)
}

// notYet are fields of a spec that this version of the daemon cannot honour. A
// field that was set is refused by name rather than ignored.
var notYet = []protoreflect.Name{
	"mounts", "copies", "builtin_tools", "services", "ports",
	"cpu_limit", "memory_limit", "disk_limit", "gpus",
}

func supported(spec *agboxv1.CreateSpec) error {
	var unknown []string
	fields := spec.ProtoReflect().Descriptor().Fields()
	for _, name := range notYet {
		if spec.ProtoReflect().Has(fields.ByName(name)) {
			unknown = append(unknown, string(name))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_UNSUPPORTED_SPEC,
		"This version of agboxd does not support %s; leave it out.", strings.Join(unknown, ", ")).
		With("fields", strings.Join(unknown, ","))
}

// checkArgs refuses what the kernel would refuse, before anything is recorded.
func checkArgs(req *agboxv1.CreateExecRequest) error {
	env := make([]string, 0, len(req.GetEnvOverrides()))
	for key, value := range req.GetEnvOverrides() {
		env = append(env, key+"="+value)
	}
	if err := wire.CheckArguments(req.GetCommand(), env); err != nil {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_COMMAND_TOO_LONG,
			"The command cannot be started: %v. Pass the data in a file instead.", err)
	}
	return nil
}
