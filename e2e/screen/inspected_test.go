package screen

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// inspected is a sandbox with long values at all depths.
func inspected() *agboxv1.GetSandboxResponse {
	at := timestamppb.New(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC))
	box := proto.CloneOf(boxes[1])
	box.CreatedAt, box.StateChangedAt = at, at
	box.Labels = map[string]string{"note": hostile, "purpose": "the tests of each night, whose results the whole team reads in the morning"}
	box.ServiceStatus = []*agboxv1.ServiceStatus{{
		Name: "search-index-of-the-shop", State: agboxv1.ServiceState_SERVICE_STATE_FAILED, Starts: 5, Since: at, ErrorCode: "SERVICE_EXITED",
		ErrorMessage: "It exited with code 1. Its last output: " + strings.Repeat("could not open the index; ", 2) + "giving up.",
	}}
	return &agboxv1.GetSandboxResponse{
		Sandbox: box,
		CreateSpec: &agboxv1.CreateSpec{
			IdleTtl: durationpb.New(90 * time.Minute),
			Command: []string{"sh", "-c", "while :; do make test >/work/out 2>&1 || mail -s '日本語のテキスト: it failed' team@example.com </work/out; sleep 3600; done"},
			Mounts:  []*agboxv1.MountSpec{{Source: "/home/ann/projects/" + strings.Repeat("a-folder-in-a-folder/", 5), Target: "/work", Writable: true}},
			Envs:    map[string]string{"A_VARIABLE_WITH_A_LONG_NAME": "a value that is as long as its name and some more"},
		},
		Containers: []*agboxv1.ContainerStatus{{Role: "primary", Name: "agbox-b7n2c5r8w1zs-primary-of-the-sandbox", ContainerId: strings.Repeat("0123456789abcdef", 4)}},
		Loosened:   []string{"writable mount of /home/ann/projects: a command in the sandbox can change what this machine executes"},
	}
}
