package contract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// servedMethods returns the calls of all services, as the daemon's reflection describes them:
// also those that the published contract does not have.
func servedMethods(t *testing.T, conn *grpc.ClientConn) (all []protoreflect.MethodDescriptor) {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(harness.Bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil || answer.GetErrorResponse() != nil {
			t.Fatal(answer, err)
		}
		return answer
	}
	files, seen := new(descriptorpb.FileDescriptorSet), map[string]bool{}
	services := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService()
	for _, service := range services {
		answer := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service.GetName()}})
		for _, raw := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
			file := new(descriptorpb.FileDescriptorProto)
			if err := proto.Unmarshal(raw, file); err != nil {
				t.Fatal(err)
			}
			if !seen[file.GetName()] {
				seen[file.GetName()] = true
				files.File = append(files.File, file)
			}
		}
	}
	registry, err := protodesc.NewFiles(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range services {
		all = append(all, methodsOf(t, registry, service.GetName())...)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return all
}

func methodsOf(t *testing.T, registry *protoregistry.Files, service string) (all []protoreflect.MethodDescriptor) {
	t.Helper()
	found, err := registry.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		t.Fatal(err)
	}
	methods := found.(protoreflect.ServiceDescriptor).Methods()
	for i := range methods.Len() {
		all = append(all, methods.Get(i))
	}
	return all
}

func path(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// bytesOnly is a codec that sends bytes as they are, and ignores what it receives.
type bytesOnly struct{}

func (bytesOnly) Name() string                  { return "proto" }
func (bytesOnly) Unmarshal([]byte, any) error   { return nil }
func (bytesOnly) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// answerTo sends requests in bytes and returns the error of the first answer, nil if there is
// an answer or the stream ends.
func answerTo(t *testing.T, conn *grpc.ClientConn, method string, requests ...[]byte) error {
	t.Helper()
	ctx, cancel := context.WithCancel(harness.Bounded(t))
	defer cancel()
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	stream, err := conn.NewStream(ctx, desc, method, grpc.ForceCodec(bytesOnly{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range requests {
		if err := stream.SendMsg(&raw); err != nil && !errors.Is(err, io.EOF) { // the answer says why
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new([]byte)); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// maxMessage is the most that a message may have, in bytes: what clients of gRPC accept by
// themselves.
const maxMessage = 4 << 20

func TestEveryErrorHasItsReason(t *testing.T) {
	in := harness.New(t)
	in.Must(t, "create", "box", "--image", harness.ImageBusybox) // streams over all have something to send
	c := connect(t, in.Socket())
	oversized, garbage := make([]byte, maxMessage+1), []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0x07}
	check := func(what string, err error, code codes.Code, reason string) {
		t.Helper()
		if r := refused(err); r.code != code || r.reason != reason || r.message == "" {
			t.Errorf("%s gives %v with the reason %q (%q), want %v with %s", what, r.code, r.reason, r.message, code, reason)
		}
	}
	methods := servedMethods(t, c.conn)
	if len(methods) < 60 {
		t.Errorf("reflection describes only %d calls", len(methods))
	}
	for _, m := range methods {
		check("an oversized request to "+path(m), answerTo(t, c.conn, path(m), oversized), codes.ResourceExhausted, "INVALID_REQUEST")
		check("garbage to "+path(m), answerTo(t, c.conn, path(m), garbage), codes.InvalidArgument, "INVALID_REQUEST")
		check("no request to "+path(m), answerTo(t, c.conn, path(m)), codes.InvalidArgument, "INVALID_REQUEST")
		if m.IsStreamingServer() && !m.IsStreamingClient() {
			check("two requests to "+path(m), answerTo(t, c.conn, path(m), nil, nil), codes.InvalidArgument, "INVALID_REQUEST")
		}
		if m.Name() == "UpgradeDaemon" {
			continue // it would begin one
		}
		if err := answerTo(t, c.conn, path(m), nil); err != nil {
			if r := refused(err); r.reason == "" || r.message == "" {
				t.Errorf("an empty request to %s gives %v without a reason: %q", path(m), r.code, r.message)
			}
		}
	}
	check("an unknown call", answerTo(t, c.conn, "/agbox.v1.SandboxService/Unknown", nil), codes.Unimplemented, "INVALID_REQUEST")
	check("an unknown service", answerTo(t, c.conn, "/agbox.v2.SandboxService/Ping", nil), codes.Unimplemented, "INVALID_REQUEST")
	check("an unknown service of the health service", healthOf(t, c.conn, "nowhere"), codes.NotFound, "INVALID_REQUEST")
	if err := answerTo(t, c.conn, "/agbox.v1.SandboxService/Ping", nil); err != nil {
		t.Errorf("after all of that Ping gives %v", err)
	}
}
