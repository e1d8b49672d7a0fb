package server

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"buf.build/go/protoyaml"
	"github.com/containerd/errdefs"
	"go.yaml.in/yaml/v3"
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
	if file := req.GetConfigYaml(); len(file) > 0 {
		if err := oneDocument(file); err != nil {
			return nil, err
		}
		if err := readFile(file, spec); err != nil {
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

// readFile reads a sandbox file. Errors carry line and column; unknown fields are
// errors. The library panics where it wants to show the line of an error that is
// at the very end of a file.
func readFile(file []byte, spec *agboxv1.CreateSpec) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("it is not a map of the fields of a sandbox, such as \"image: NAME\"")
		}
	}()
	return protoyaml.UnmarshalOptions{Path: "agbox.yaml"}.Unmarshal(file, spec)
}

// oneDocument refuses a file with a second document, which would be ignored. What
// is no YAML at all is left to who says where it is wrong.
func oneDocument(file []byte) error {
	documents := yaml.NewDecoder(bytes.NewReader(file))
	if err := documents.Decode(new(yaml.Node)); err != nil {
		return nil
	}
	if err := documents.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return invalid("The sandbox file is not valid: it holds more than one document, and a sandbox is described by one; remove the others.")
	}
	return nil
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
