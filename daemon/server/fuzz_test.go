package server

import (
	"log/slog"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/internal/ids"
)

// requests returns the request types of all methods, in the order of the service, as gRPC
// decodes them.
func requests(f *testing.F) []protoreflect.MessageType {
	var all []protoreflect.MessageType
	methods := agboxv1.File_agbox_v1_service_proto.Services().ByName("SandboxService").Methods()
	for i := range methods.Len() {
		// The generated types, as gRPC decodes them: dynamicpb panics on some maps.
		kind, err := agboxv1.Types.FindMessageByName(methods.Get(i).Input().FullName())
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, kind)
	}
	return all
}

// FuzzRequest decodes any bytes as a request of any method and handles it as far as a
// server without dependencies can. Requests that pass must have only ids from which paths
// may be built.
func FuzzRequest(f *testing.F) {
	kinds := requests(f)
	for i, seed := range []proto.Message{
		&agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "../x", Command: []string{"sh", "\x00"}, EnvOverrides: map[string]string{"A=": "b"}},
		&agboxv1.CreateSandboxRequest{SandboxId: "a", ConfigYaml: []byte("image: &a [*a]\n"), CreateSpec: &agboxv1.CreateSpec{Image: "i", Envs: map[string]string{"": ""}}},
		&agboxv1.FollowExecLogsRequest{ExecId: "x", Cursor: &agboxv1.LogCursor{StdoutOffset: 1 << 63}},
		&agboxv1.WatchEventsRequest{AfterPosition: 1<<64 - 1, LabelSelector: map[string]string{"a": "b"}},
		&agboxv1.ListExecsRequest{SandboxId: "а", PageToken: "\u202e", PageSize: 1<<32 - 1},
	} {
		raw, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		for method := range kinds {
			f.Add(uint8(method+i), raw)
		}
	}
	f.Add(uint8(1), []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	rules := protovalidate.GlobalValidator
	s := &guard{log: slog.New(slog.DiscardHandler), rules: rules}
	f.Fuzz(func(t *testing.T, method uint8, raw []byte) {
		decoded := kinds[int(method)%len(kinds)].New()
		if proto.Unmarshal(raw, decoded.Interface()) != nil {
			return // gRPC refuses it before a handler is called
		}
		if err := s.check(decoded.Interface()); err != nil {
			_ = s.status("fuzz", err).Error()
			return
		}
		checkIDs(t, decoded)
		req := new(agboxv1.CreateExecRequest)
		if decoded.Descriptor() == req.ProtoReflect().Descriptor() && proto.Unmarshal(raw, req) == nil {
			_ = admission.CheckCommand(req)
		}
	})
}

// checkIDs checks all fields that name a sandbox or an exec.
func checkIDs(t *testing.T, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Name() != "sandbox_id" && f.Name() != "exec_id" {
			return true
		}
		if id := v.String(); id != "" && !ids.Valid(id) {
			t.Errorf("%s lets the id %q through: %s", m.Descriptor().Name(), id, protojson.Format(m.Interface()))
		}
		return true
	})
}
