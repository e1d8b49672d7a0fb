package contract

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func errorReasons(t *testing.T, w *world) {
	ready := w.create(t, fields{"image": harness.ImageBusybox})
	stopped := w.create(t, fields{"image": harness.ImageBusybox})
	w.call(t, "StopSandbox", fields{"sandbox_id": stopped})
	w.await(t, stopped, "SANDBOX_STATE_STOPPED")
	deleted := w.create(t, fields{"image": harness.ImageBusybox})
	w.call(t, "DeleteSandbox", fields{"sandbox_id": deleted})
	w.await(t, deleted, "SANDBOX_STATE_DELETED")
	failed := w.create(t, fields{"image": harness.ImageBusybox})
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), "agbox-primary-"+failed, "KILL"); err != nil {
		t.Fatal(err)
	}
	w.await(t, failed, "SANDBOX_STATE_FAILED")
	ended := w.call(t, "CreateExec", fields{"sandbox_id": ready, "command": []string{"true"}}).text("exec_id")
	w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": ready}).
		until(t, func(ev answer) bool {
			return ev.text("exec.exec_id") == ended && ev.text("event_type") == "EXEC_FINISHED"
		})
	spec, command := fields{"image": harness.ImageBusybox}, []string{"true"}
	for _, c := range []struct {
		method   string
		request  fields
		code     codes.Code
		reason   string
		metadata map[string]string
	}{
		{"CreateSandbox", fields{"sandbox_id": ready, "create_spec": fields{"image": harness.ImageUser}}, codes.AlreadyExists, "SANDBOX_ID_ALREADY_EXISTS", map[string]string{"sandbox_id": ready}},
		{"CreateSandbox", fields{"sandbox_id": deleted, "create_spec": spec}, codes.AlreadyExists, "SANDBOX_ID_ALREADY_EXISTS", map[string]string{"sandbox_id": deleted}},
		{"GetSandbox", fields{"sandbox_id": "nowhere"}, codes.NotFound, "SANDBOX_NOT_FOUND", map[string]string{"sandbox_id": "nowhere"}},
		{"ResumeSandbox", fields{"sandbox_id": "nowhere"}, codes.NotFound, "SANDBOX_NOT_FOUND", map[string]string{"sandbox_id": "nowhere"}},
		{"StopSandbox", fields{"sandbox_id": "nowhere"}, codes.NotFound, "SANDBOX_NOT_FOUND", map[string]string{"sandbox_id": "nowhere"}},
		{"DeleteSandbox", fields{"sandbox_id": "nowhere"}, codes.NotFound, "SANDBOX_NOT_FOUND", map[string]string{"sandbox_id": "nowhere"}},
		{"CreateExec", fields{"sandbox_id": "nowhere", "command": command}, codes.NotFound, "SANDBOX_NOT_FOUND", map[string]string{"sandbox_id": "nowhere"}},
		{"ListActiveExecs", fields{"sandbox_id": "nowhere"}, codes.NotFound, "SANDBOX_NOT_FOUND", map[string]string{"sandbox_id": "nowhere"}},
		{"SubscribeSandboxEvents", fields{"sandbox_id": "nowhere"}, codes.NotFound, "SANDBOX_NOT_FOUND", map[string]string{"sandbox_id": "nowhere"}},
		{"GetExec", fields{"exec_id": "nowhere"}, codes.NotFound, "EXEC_NOT_FOUND", map[string]string{"exec_id": "nowhere"}},
		{"CancelExec", fields{"exec_id": "nowhere"}, codes.NotFound, "EXEC_NOT_FOUND", map[string]string{"exec_id": "nowhere"}},
		{"CreateExec", fields{"sandbox_id": ready, "exec_id": ended, "command": []string{"false"}}, codes.AlreadyExists, "EXEC_ID_ALREADY_EXISTS", map[string]string{"exec_id": ended}},
		{"CreateExec", fields{"sandbox_id": stopped, "command": command}, codes.FailedPrecondition, "SANDBOX_NOT_READY", map[string]string{"sandbox_id": stopped}},
		{"CreateExec", fields{"sandbox_id": failed, "command": command}, codes.FailedPrecondition, "SANDBOX_NOT_READY", map[string]string{"sandbox_id": failed}},
		{"CreateExec", fields{"sandbox_id": deleted, "command": command}, codes.FailedPrecondition, "SANDBOX_NOT_READY", map[string]string{"sandbox_id": deleted}},
		{"StopSandbox", fields{"sandbox_id": failed}, codes.FailedPrecondition, "SANDBOX_INVALID_STATE", map[string]string{"sandbox_id": failed}},
		{"StopSandbox", fields{"sandbox_id": deleted}, codes.FailedPrecondition, "SANDBOX_INVALID_STATE", map[string]string{"sandbox_id": deleted}},
		{"ResumeSandbox", fields{"sandbox_id": deleted}, codes.FailedPrecondition, "SANDBOX_INVALID_STATE", map[string]string{"sandbox_id": deleted}},
		{"CancelExec", fields{"exec_id": ended}, codes.FailedPrecondition, "EXEC_ALREADY_TERMINAL", map[string]string{"exec_id": ended}},
		{"SubscribeSandboxEvents", fields{"sandbox_id": ready, "from_sequence": "1000"}, codes.OutOfRange, "SANDBOX_EVENT_SEQUENCE_EXPIRED", map[string]string{"sandbox_id": ready, "from_sequence": "1000"}},
	} {
		r := w.refuse(t, c.method, c.request)
		if r.code != c.code || r.reason != c.reason {
			t.Errorf("%s(%v) gives %v with %q, want %v with %s", c.method, c.request, r.code, r.reason, c.code, c.reason)
		}
		if !maps.Equal(r.metadata, c.metadata) {
			t.Errorf("%s(%v) gives the metadata %v, want %v", c.method, c.request, r.metadata, c.metadata)
		}
	}
	w.call(t, "DeleteSandbox", fields{"sandbox_id": deleted}) // repeated: it is idempotent
}

func emptyRequests(t *testing.T, w *world) {
	const (
		sandbox = "Give the id of a sandbox."
		exec    = "Give the id of an exec."
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
		if err := healthOf(t, w.conn, service.GetName()); err != nil {
			t.Error(err)
		}
	}
	if own < 2 {
		t.Errorf("reflection lists %v", list)
	}
}

// healthOf returns an error unless a service is healthy.
func healthOf(t *testing.T, conn *grpc.ClientConn, service string) error {
	t.Helper()
	answer, err := healthv1.NewHealthClient(conn).Check(harness.Bounded(t), &healthv1.HealthCheckRequest{Service: service})
	if err == nil && answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("the health of %s is %v", service, answer.GetStatus())
	}
	return err
}
