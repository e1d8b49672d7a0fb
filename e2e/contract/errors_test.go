package contract

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func emptyRequests(t *testing.T, w *world) {
	const (
		sandbox = "Give a sandbox: its id, the beginning of its id, or its name."
		exec    = "Give an exec: its id, the beginning of its id, or its name, alone or as SANDBOX/NAME."
	)
	for _, c := range []struct {
		method  string
		request fields
		says    string
	}{
		{"CreateSandbox", fields{}, "Give an image."},
		{"CreateSandbox", fields{"create_spec": fields{}}, "Give an image."},
		{"GetSandbox", fields{}, sandbox},
		{"ResumeSandbox", fields{}, sandbox},
		{"StopSandbox", fields{}, sandbox},
		{"DeleteSandbox", fields{}, sandbox},
		{"SubscribeSandboxEvents", fields{}, sandbox},
		{"ListActiveExecs", fields{"sandbox_id": ""}, sandbox},
		{"DeleteSandboxes", fields{}, "Give at least one label."},
		{"CreateExec", fields{}, sandbox + " Give a command."},
		{"CreateExec", fields{"sandbox_id": "x"}, "Give a command."},
		{"GetExec", fields{}, exec},
		{"CancelExec", fields{}, exec},
	} {
		r := w.refuse(t, c.method, c.request)
		if r.code != codes.InvalidArgument || r.reason != "INVALID_REQUEST" || r.message != c.says {
			t.Errorf("%s(%v) gives %v: %q, want %q", c.method, c.request, r.code, r.message, c.says)
		}
	}
}

func healthOfEveryService(t *testing.T, w *world) {
	stream, err := reflectionv1.NewServerReflectionClient(w.conn).ServerReflectionInfo(harness.Bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, service := range list.GetListServicesResponse().GetService() {
		if strings.HasPrefix(service.GetName(), protoPackage) {
			own++
		}
		answer, err := healthv1.NewHealthClient(w.conn).Check(harness.Bounded(t), &healthv1.HealthCheckRequest{Service: service.GetName()})
		if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("the health of %s is %v (%v)", service.GetName(), answer, err)
		}
	}
	if own < 2 {
		t.Errorf("reflection lists %v", list)
	}
}
