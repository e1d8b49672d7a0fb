package server

import (
	"fmt"
	"strings"

	"buf.build/go/protoyaml"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
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

// The kernel's limits on what a new process may be given: one string
// (MAX_ARG_STRLEN, 32 pages) and all of them together (a quarter of the default
// 8 MiB stack limit; see execve(2)). The reserve is for the environment that
// the sandbox itself adds.
const (
	maxArgString  = 32 * 4096
	maxArgTotal   = 8 << 20 / 4
	argReserve    = 256 << 10
	perArgPointer = 8
)

// checkArgs refuses what the kernel would refuse, before anything is recorded.
func checkArgs(req *agboxv1.CreateExecRequest) error {
	total := 0
	add := func(what string, n int) error {
		if n+1 > maxArgString {
			return tooLong(fmt.Sprintf("%s has %d bytes; the kernel takes at most %d", what, n, maxArgString-1))
		}
		total += n + 1 + perArgPointer
		return nil
	}
	for i, arg := range req.GetCommand() {
		if err := add(fmt.Sprintf("command[%d]", i), len(arg)); err != nil {
			return err
		}
	}
	for key, value := range req.GetEnvOverrides() {
		if err := add("the environment variable "+key, len(key)+1+len(value)); err != nil {
			return err
		}
	}
	if total > maxArgTotal-argReserve {
		return tooLong(fmt.Sprintf("command and environment have %d bytes; at most %d fit", total, maxArgTotal-argReserve))
	}
	return nil
}

func tooLong(sentence string) error {
	return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_COMMAND_TOO_LONG,
		"%s: pass the data in a file instead.", sentence)
}
