package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const serviceName = "agbox.v1.SandboxService"

// connect makes a gRPC connection with the library's defaults, as a foreign client would.
func (in *install) connect(t *testing.T) *grpc.ClientConn {
	t.Helper()
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", in.Socket())
	}
	conn, err := grpc.NewClient("passthrough:///agboxd", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// stranger is a client that knows only what the daemon's reflection says about the API.
type stranger struct {
	conn    *grpc.ClientConn
	service protoreflect.ServiceDescriptor
}

// reflected reads the description of the API from the daemon.
func reflected(t *testing.T, conn *grpc.ClientConn) stranger {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(harness.Bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(request *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil || answer.GetErrorResponse() != nil {
			t.Fatal(err, answer.GetErrorResponse())
		}
		return answer
	}
	list := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	if !slices.ContainsFunc(list.GetListServicesResponse().GetService(),
		func(s *reflectionv1.ServiceResponse) bool { return s.GetName() == serviceName }) {
		t.Fatalf("reflection lists %v, want %s", list, serviceName)
	}
	files := new(descriptorpb.FileDescriptorSet)
	seen := make(map[string]bool)
	answer := ask(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: serviceName}})
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
	// The files must come with all their imports.
	registry, err := protodesc.NewFiles(files)
	if err != nil {
		t.Fatal(err)
	}
	return stranger{conn: conn, service: findService(t, registry)}
}

func findService(t *testing.T, registry *protoregistry.Files) protoreflect.ServiceDescriptor {
	t.Helper()
	found, err := registry.FindDescriptorByName(serviceName)
	if err != nil {
		t.Fatal(err)
	}
	return found.(protoreflect.ServiceDescriptor)
}

// call makes a request from JSON and returns the answers as JSON values.
func (s stranger) call(t *testing.T, method, request string) []map[string]any {
	t.Helper()
	m := s.service.Methods().ByName(protoreflect.Name(method))
	in := dynamicpb.NewMessage(m.Input())
	if err := protojson.Unmarshal([]byte(request), in); err != nil {
		t.Fatal(err)
	}
	stream, err := s.conn.NewStream(harness.Bounded(t), &grpc.StreamDesc{ServerStreams: m.IsStreamingServer()}, "/"+serviceName+"/"+method)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(in); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var answers []map[string]any
	for {
		out := dynamicpb.NewMessage(m.Output())
		if err := stream.RecvMsg(out); err != nil {
			if len(answers) == 0 || !errors.Is(err, io.EOF) {
				t.Fatalf("%s: %v", method, err)
			}
			return answers
		}
		answer := make(map[string]any)
		out.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			answer[string(f.Name())] = v.Interface()
			return true
		})
		answers = append(answers, answer)
		if !m.IsStreamingServer() {
			return answers
		}
	}
}

func TestAnyGRPCClientCanLookAround(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	conn := in.connect(t)
	methods := reflected(t, conn).service.Methods()
	for _, name := range strings.Fields("CancelExec CreateExec CreateSandbox DeleteSandbox DeleteSandboxes FollowExecLogs GetExec " +
		"GetSandbox ListActiveExecs ListExecs ListSandboxes Ping ResumeSandbox RunExec SignalExec StopSandbox SubscribeSandboxEvents WatchEvents") {
		if methods.ByName(protoreflect.Name(name)) == nil {
			t.Errorf("reflection does not know the method %s", name)
		}
	}
	for _, name := range []string{"", serviceName} {
		answer, err := healthv1.NewHealthClient(conn).Check(harness.Bounded(t), &healthv1.HealthCheckRequest{Service: name})
		if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("the health of %q is %v (%v)", name, answer, err)
		}
	}
}

func TestAClientThatKnowsOnlyTheReflectionRunsACommand(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	s := reflected(t, in.connect(t))
	created := s.call(t, "CreateExec", fmt.Sprintf(`{"sandboxId":%q,"command":["sh","-c","echo to stdout; echo to stderr >&2; exit 7"],"envOverrides":{"A":"b"}}`, box))
	id, ok := created[0]["exec_id"].(string)
	if !ok || id == "" {
		t.Fatalf("CreateExec answers %v", created)
	}
	items := s.call(t, "FollowExecLogs", fmt.Sprintf(`{"execId":%q,"follow":true}`, id))
	got := make(map[int]string)
	for _, item := range items[:len(items)-1] {
		chunk := item["chunk"].(protoreflect.Message)
		fields := chunk.Descriptor().Fields()
		got[int(chunk.Get(fields.ByName("stream")).Enum())] += string(chunk.Get(fields.ByName("data")).Bytes())
	}
	if got[1] != "to stdout\n" || got[2] != "to stderr\n" {
		t.Errorf("the output is %v", got)
	}
	end := items[len(items)-1]["end"].(protoreflect.Message)
	exec := end.Get(end.Descriptor().Fields().ByName("exec")).Message()
	if code := exec.Get(exec.Descriptor().Fields().ByName("exit_code")).Int(); code != 7 {
		t.Errorf("the exit code is %d, want 7", code)
	}
}

func TestManyCallsAtATimeOnOneConnectionDoNotStall(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	api := agboxv1.NewSandboxServiceClient(in.connect(t))
	ctx := harness.Bounded(t)
	const atATime, rounds = 512, 20
	failed := make(chan error, atATime)
	var callers sync.WaitGroup
	for i := range atATime {
		callers.Go(func() {
			for range rounds {
				var err error
				if i%2 == 0 {
					_, err = api.Ping(ctx, &agboxv1.PingRequest{})
				} else {
					_, err = api.ListSandboxes(ctx, &agboxv1.ListSandboxesRequest{})
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	callers.Wait()
	close(failed)
	for err := range failed {
		t.Fatal(err)
	}
}

// TestEveryListRefusesAPageTokenThatItHasNotGiven, whatever service it is of.
func TestEveryListRefusesAPageTokenThatItHasNotGiven(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box, other := in.Create(t, "demo", harness.ImageBusybox), in.Create(t, "other", harness.ImageBusybox)
	in.Must(t, "exec", "demo", "--", "true")
	in.Must(t, "exec", "other", "--", "true")
	foreign := ""
	c := in.Client(t)
	for e, err := range c.ListExecs(harness.Bounded(t), other) {
		if err != nil {
			t.Fatal(err)
		}
		foreign = e.GetExecId()
	}
	conn := in.connect(t)
	lists := 0
	agboxv1.Files.RangeFilesByPackage("agbox.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				token := m.Input().Fields().ByName("page_token")
				if token == nil {
					continue
				}
				lists++
				for _, made := range []string{"made-up", foreign} {
					req := dynamicpb.NewMessage(m.Input())
					req.Set(m.Input().Fields().ByName("sandbox_id"), protoreflect.ValueOfString(box))
					req.Set(token, protoreflect.ValueOfString(made))
					if path := m.Input().Fields().ByName("path"); path != nil {
						req.Set(path, protoreflect.ValueOfString("/"))
					}
					err := conn.Invoke(harness.Bounded(t), fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()), req, dynamicpb.NewMessage(m.Output()))
					if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "page_token") {
						t.Errorf("%s with the token %q: %v", m.FullName(), made, err)
					}
				}
			}
		}
		return true
	})
	if lists < 2 {
		t.Errorf("only %d methods have a page_token", lists)
	}
}
