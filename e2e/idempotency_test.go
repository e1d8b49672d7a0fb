package e2e

import (
	"errors"
	"os"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// errorInfo returns the ErrorInfo of an error, or nil.
func errorInfo(err error) *errdetails.ErrorInfo {
	st, _ := status.FromError(err)
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

func reasonOf(err error) string { return errorInfo(err).GetReason() }

func TestTheSameSandboxTwiceIsOneAndAnotherIsRefused(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	c := in.Client(t)
	ctx := harness.Bounded(t)
	request := func(image string) *agboxv1.CreateSandboxRequest {
		return &agboxv1.CreateSandboxRequest{SandboxId: "chosen-id", CreateSpec: &agboxv1.CreateSpec{Image: image, Name: "demo"}}
	}
	for range 2 {
		box, err := c.CreateSandbox(ctx, request(harness.ImageBusybox))
		if err != nil || box.GetSandboxId() != "chosen-id" {
			t.Fatalf("CreateSandbox answers %v (%v)", box, err)
		}
	}
	if _, err := c.WaitReady(ctx, "chosen-id"); err != nil {
		t.Fatal(err)
	}
	box, err := c.CreateSandbox(ctx, request(harness.ImageBusybox))
	if err != nil || box.GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY {
		t.Errorf("asked again when it is ready, CreateSandbox answers %v (%v)", box, err)
	}
	if inv := in.Inventory(t); len(inv.Containers) != 1 || len(inv.Networks) != 1 {
		t.Errorf("the engine has %+v, want one container and one network", inv)
	}
	if _, err := c.CreateSandbox(ctx, request(harness.ImageScratch)); !errors.Is(err, client.ErrAlreadyExists) {
		t.Errorf("another sandbox with the same id gives %v", err)
	}
	// The command line is a client like any other.
	harness.WantSame(t, "create", in.Create(t, "demo", harness.ImageBusybox, "--id", "chosen-id"), "chosen-id")
	refused(t, in.Agbox(t, "create", "demo", "--id", "chosen-id", "--image", harness.ImageScratch), 4, "chosen-id")
	if boxes := in.list(t); len(boxes) != 1 {
		t.Errorf("ls shows %v, want the one sandbox", boxes)
	}
}

func TestTheSameExecTwiceRunsOnce(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	c := in.Client(t)
	ctx := harness.Bounded(t)
	request := &agboxv1.CreateExecRequest{SandboxId: box, ExecId: "chosen-id",
		Command: []string{"sh", "-c", "echo run >>/tmp/runs; exit 3"}}
	// Before, while and after it runs, and after a restart of the daemon.
	for i := range 4 {
		out, err := c.CreateExec(ctx, request)
		if err != nil || out.GetExecId() != "chosen-id" {
			t.Fatalf("CreateExec answers %v (%v)", out, err)
		}
		ended, err := c.CopyOutput(ctx, "chosen-id", t.Output(), t.Output())
		if err != nil || ended.Code != 3 {
			t.Errorf("the exec ended with %v (%v), want code 3", ended.Code, err)
		}
		if i == 2 {
			in.KillDaemon(t)
			in.Must(t, "daemon", "start")
		}
	}
	in.Agbox(t, "exec", "demo", "--", "cat", "/tmp/runs").Want(t, 0).WantOutput(t, "run\n", "")
	other := &agboxv1.CreateExecRequest{SandboxId: box, ExecId: "chosen-id", Command: []string{"true"}}
	if _, err := c.CreateExec(ctx, other); !errors.Is(err, client.ErrAlreadyExists) {
		t.Errorf("another exec with the same id gives %v", err)
	}
}

func TestARequestKeyOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "stuff", map[string]string{"a": ""})
	in.Must(t, "daemon", "start")
	c := in.Client(t)
	ctx := harness.Bounded(t)
	box := &agboxv1.CreateSandboxRequest{RequestKey: "box-key", CreateSpec: &agboxv1.CreateSpec{
		Image: harness.ImageBusybox, Mounts: []*agboxv1.MountSpec{{Source: dir, Target: "/x"}},
	}}
	first, err := c.CreateSandbox(ctx, box)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitReady(ctx, first.GetSandboxId()); err != nil {
		t.Fatal(err)
	}
	job := &agboxv1.CreateExecRequest{RequestKey: "job-key", SandboxId: first.GetSandboxId(), Command: []string{"sh", "-c", "echo run >>/tmp/runs"}}
	ran, err := c.CreateExec(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	// What a new request would be refused for does not matter to a repeated one.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if again, err := c.CreateSandbox(ctx, box); err != nil || again.GetSandboxId() != first.GetSandboxId() {
		t.Errorf("the sandbox is %v (%v), first %s", again, err, first.GetSandboxId())
	}
	if again, err := c.CreateExec(ctx, job); err != nil || again.GetExecId() != ran.GetExecId() {
		t.Errorf("the exec is %v (%v), first %s", again, err, ran.GetExecId())
	}
	harness.WantSame(t, "runs", in.inside(t, first.GetSandboxId(), "cat /tmp/runs"), "run\n")
	box.CreateSpec = &agboxv1.CreateSpec{Image: harness.ImageUser}
	if _, err := c.CreateSandbox(ctx, box); !errors.Is(err, client.ErrAlreadyExists) {
		t.Errorf("another sandbox with the same key gives %v", err)
	}
}

func TestARepeatedCommandByNameStaysInTheSandboxOfTheFirst(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	first := in.Create(t, "first", harness.ImageBusybox)
	c := in.Client(t)
	ctx := harness.Bounded(t)
	job := &agboxv1.CreateExecRequest{RequestKey: "job-key", SandboxName: "first", Command: []string{"sh", "-c", "echo run >>/tmp/runs"}}
	ran, err := c.CreateExec(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	in.KillDaemon(t)
	in.Must(t, "rename", "first", "before")
	second := in.Create(t, "first", harness.ImageBusybox)
	if again, err := c.CreateExec(ctx, job); err != nil || again.GetExecId() != ran.GetExecId() {
		t.Errorf("the exec is %v (%v), first %s", again, err, ran.GetExecId())
	}
	job.RequestKey = "another-key"
	if _, err := c.CreateExec(ctx, job); err != nil {
		t.Fatal(err)
	}
	for _, sandbox := range []string{first, second} {
		harness.WantSame(t, "runs in "+sandbox, in.inside(t, sandbox, "cat /tmp/runs"), "run\n")
	}
	for _, other := range []string{second, "before", "nothing"} { // another request with the key of the first one
		job.RequestKey, job.SandboxName = "job-key", other
		if _, err := c.CreateExec(ctx, job); !errors.Is(err, client.ErrAlreadyExists) {
			t.Errorf("the same key for %s gives %v", other, err)
		}
	}
	job.RequestKey, job.SandboxName = "third-key", first[:4]
	if _, err := c.CreateExec(ctx, job); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("the beginning of an id gives %v", err)
	}
	job.SandboxName = ""
	_, err = c.CreateExec(ctx, job)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Reason != agboxv1.ErrorReason_INVALID_REQUEST.String() {
		t.Errorf("no sandbox gives %v", err)
	}
}

func TestErrorsSpeakToProgramsToo(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	api := agboxv1.NewSandboxServiceClient(in.connect(t))
	ctx := harness.Bounded(t)
	for _, c := range []struct {
		what   string
		call   func() error
		code   codes.Code
		reason agboxv1.ErrorReason
	}{
		{"an unknown sandbox", func() error {
			_, err := api.GetSandbox(ctx, &agboxv1.GetSandboxRequest{SandboxId: "nosuch"})
			return err
		}, codes.NotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND},
		{"an unknown exec", func() error {
			_, err := api.GetExec(ctx, &agboxv1.GetExecRequest{ExecId: "nosuch"})
			return err
		}, codes.NotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND},
		{"a path", func() error {
			_, err := api.StopSandbox(ctx, &agboxv1.StopSandboxRequest{SandboxId: "../x"})
			return err
		}, codes.InvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST},
		{"a taken id", func() error {
			_, err := api.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{SandboxId: box, CreateSpec: &agboxv1.CreateSpec{Image: harness.ImageScratch}})
			return err
		}, codes.AlreadyExists, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS},
		{"a taken name", func() error {
			_, err := api.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: harness.ImageScratch, Name: "demo"}})
			return err
		}, codes.AlreadyExists, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS},
		{"a mount of nothing", func() error {
			_, err := api.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{
				Image: harness.ImageScratch, Mounts: []*agboxv1.MountSpec{{Source: "/nowhere/at/all", Target: "/x"}},
			}})
			return err
		}, codes.InvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST},
		{"an empty selection", func() error {
			_, err := api.DeleteSandboxes(ctx, &agboxv1.DeleteSandboxesRequest{})
			return err
		}, codes.InvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST},
	} {
		err := c.call()
		info := errorInfo(err)
		if status.Code(err) != c.code || info.GetDomain() != "agents-sandbox" || info.GetReason() != c.reason.String() {
			t.Errorf("%s gives %v with %v, want %v and %v", c.what, err, info, c.code, c.reason)
		}
	}
	if boxes := in.list(t, "--deleted"); len(boxes) != 1 {
		t.Errorf("ls --deleted shows %v, want the one sandbox", boxes)
	}
}
