package screen

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// recorded answers like a daemon with these sandboxes, commands and agents. Their texts are
// long, wide or hostile.
type recorded struct {
	agboxv1.UnimplementedSandboxServiceServer
	agboxv1.UnimplementedAgentServiceServer
}

// serve starts a recorded daemon and returns its socket.
func serve(t *testing.T, dir string) string {
	t.Helper()
	socket := filepath.Join(dir, "d.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	agboxv1.RegisterSandboxServiceServer(server, recorded{})
	agboxv1.RegisterAgentServiceServer(server, recorded{})
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		served.Wait()
	})
	return socket
}

// hostile is text that would clear the screen, change its title and write from the right to
// the left.
const hostile = "\x1b[2J\x1b]0;owned\a\u202eevil\r\n"

// past is a time that agbox shows with the same words for a minute.
func past(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(time.Now().Add(-d - 20*time.Second))
}

func (recorded) Ping(context.Context, *agboxv1.PingRequest) (*agboxv1.PingResponse, error) {
	return &agboxv1.PingResponse{Version: "v-test", Daemon: "agboxd", Pid: 1}, nil
}

var boxes = boxesNow()

// boxesNow and the functions like it are called for each answer: past counts from now.
func boxesNow() []*agboxv1.SandboxHandle {
	return []*agboxv1.SandboxHandle{
		{
			SandboxId: "k3v9x2m8qh4t", Name: "web", State: agboxv1.SandboxState_SANDBOX_STATE_READY, Image: "debian:12", ActiveExecs: 2,
			CreatedAt: past(3 * time.Minute), Labels: map[string]string{"team": "red", "owner": "ann", "agbox.folder": "/home/ann/shop"},
			ServiceStatus: []*agboxv1.ServiceStatus{
				{Name: "db", State: agboxv1.ServiceState_SERVICE_STATE_READY}, {Name: "search-index-of-the-shop", State: agboxv1.ServiceState_SERVICE_STATE_FAILED},
			},
		},
		{
			SandboxId: "b7n2c5r8w1zs", Name: "a-sandbox-whose-name-is-rather-long-but-still-allowed", State: agboxv1.SandboxState_SANDBOX_STATE_READY, Degraded: true,
			DegradedReason: "The service search-index-of-the-shop has failed.", CreatedAt: past(26 * time.Hour), ActiveExecs: 12,
			Image: "registry.example.com/a/very/long/repository/name/that/goes/on@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		},
		{
			SandboxId: "an-id-that-somebody-chose-with-care-for-the-nightly-run", State: agboxv1.SandboxState_SANDBOX_STATE_FAILED, Image: "日本語/イメージ:最新版",
			ErrorCode: "IMAGE_NOT_FOUND", ErrorMessage: "The image is not there." + hostile, CreatedAt: past(50 * time.Hour),
		},
		{
			SandboxId: "f5d8s1k6j3hv", Name: "old", State: agboxv1.SandboxState_SANDBOX_STATE_STOPPED, Image: hostile + "image", CreatedAt: past(90 * 24 * time.Hour),
			Labels: map[string]string{"note": hostile, "agbox.folder": "/srv/" + hostile + "日本語/a/folder/with/a/long/path"},
		},
	}
}

func (recorded) ListSandboxes(context.Context, *agboxv1.ListSandboxesRequest) (*agboxv1.ListSandboxesResponse, error) {
	return &agboxv1.ListSandboxesResponse{Sandboxes: boxesNow()}, nil
}

func (recorded) GetSandbox(_ context.Context, in *agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
	if in.GetSandboxId() == "long" || in.GetSandboxId() == inspected().GetSandbox().GetSandboxId() { // a daemon without Resolve takes names
		return inspected(), nil
	}
	return &agboxv1.GetSandboxResponse{Sandbox: boxesNow()[0], Containers: []*agboxv1.ContainerStatus{
		{Role: "primary", Ports: []*agboxv1.PublishedPort{{ContainerPort: 80, HostIp: "127.0.0.1", HostPort: 32768}}},
		{Role: "service", Service: "search-index-of-the-shop", Ports: []*agboxv1.PublishedPort{{ContainerPort: 5353, Protocol: agboxv1.PortProtocol_PORT_PROTOCOL_UDP, HostIp: "fd00:1234:5678:9abc:def0:1234:5678:9abc", HostPort: 5353}}},
		{Role: "service", Service: "db", Ports: []*agboxv1.PublishedPort{{ContainerPort: 5432}}},
	}}, nil
}

func execsNow() []*agboxv1.ExecStatus {
	return []*agboxv1.ExecStatus{
		{
			ExecId: "q4w8e2r6t1yz", SandboxId: "k3v9x2m8qh4t", Name: "job", State: agboxv1.ExecState_EXEC_STATE_RUNNING, StartedAt: past(time.Minute),
			Command: []string{"sh", "-c", "while :; do echo '日本語のテキスト' " + strings.Repeat("and a long argument ", 20) + "; done"},
		},
		{
			ExecId: "main-b7n2c5r8w1zs", SandboxId: "b7n2c5r8w1zs", Name: "main", State: agboxv1.ExecState_EXEC_STATE_RUNNING, StartedAt: past(25 * time.Hour),
			Command: []string{"sleep", "infinity"},
		},
		{
			ExecId: "p9o5i3u7x2aa", SandboxId: "f5d8s1k6j3hv", State: agboxv1.ExecState_EXEC_STATE_FINISHED, ExitCode: 137, Signal: 9, StartedAt: past(80 * 24 * time.Hour),
			UserTime: durationpb.New(95 * time.Second), Command: []string{"printf", hostile, "👍🏽 👨‍👩‍👧 e\u0301"},
		},
		{
			ExecId: "z1x2c3v4b5nm", SandboxId: "k3v9x2m8qh4t", Name: "tests", State: agboxv1.ExecState_EXEC_STATE_FINISHED, StartedAt: past(2 * time.Hour),
			Command: []string{"make", "test"},
		},
	}
}

func (recorded) ListActiveExecs(context.Context, *agboxv1.ListActiveExecsRequest) (*agboxv1.ListActiveExecsResponse, error) {
	return &agboxv1.ListActiveExecsResponse{Execs: execsNow()[:2]}, nil
}

func (recorded) ListExecs(_ context.Context, in *agboxv1.ListExecsRequest) (*agboxv1.ListExecsResponse, error) {
	out := &agboxv1.ListExecsResponse{}
	for _, e := range execsNow() {
		if e.GetSandboxId() == in.GetSandboxId() {
			out.Execs = append(out.Execs, e)
		}
	}
	return out, nil
}

func (recorded) ListImages(context.Context, *agboxv1.ListImagesRequest) (*agboxv1.ListImagesResponse, error) {
	return &agboxv1.ListImagesResponse{Images: []*agboxv1.Image{
		{Id: "sha256:4b1e9c0d2f", Names: []string{"debian:12", boxes[1].GetImage()}, SizeBytes: 117_000_000, CreatedAt: past(30 * 24 * time.Hour)},
		{Id: "sha256:0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9", Names: []string{boxes[2].GetImage()}, SizeBytes: 9, CreatedAt: past(time.Hour)},
	}}, nil
}

func (recorded) WatchStats(_ *agboxv1.WatchStatsRequest, out grpc.ServerStreamingServer[agboxv1.WatchStatsResponse]) error {
	return out.Send(&agboxv1.WatchStatsResponse{Containers: []*agboxv1.ContainerStats{
		{SandboxId: "k3v9x2m8qh4t", SandboxName: "web", Role: "primary", CpuPercent: 153.25, MemoryBytes: 1 << 30, MemoryLimitBytes: 16 << 30, NetReceivedBytes: 1234567,
			NetSentBytes: 99, BlockReadBytes: 5_000_000, BlockWrittenBytes: 7_000_000_000, Pids: 17, PidsLimit: 4096},
		{SandboxId: "b7n2c5r8w1zs", SandboxName: boxes[1].GetName(), Role: "service", Service: "search-index-of-the-shop", CpuPercent: 0.5, MemoryBytes: 1 << 20, MemoryLimitBytes: 64 << 20, Pids: 1},
	}})
}

func (recorded) WatchEvents(_ *agboxv1.WatchEventsRequest, out grpc.ServerStreamingServer[agboxv1.WatchEventsResponse]) error {
	events := []*agboxv1.SandboxEvent{
		{EventType: agboxv1.EventType_SANDBOX_ACCEPTED, Details: &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{Name: "web"}}},
		{EventType: agboxv1.EventType_SANDBOX_PREPARING, Details: &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{Phase: "image", Reason: "pulling " + boxes[1].GetImage()}}},
		{EventType: agboxv1.EventType_EXEC_FINISHED, Details: &agboxv1.SandboxEvent_Exec{Exec: &agboxv1.ExecEventDetails{ExecId: "q4w8e2r6t1yz", Name: "job", ExitCode: 1, ErrorMessage: hostile + strings.Repeat("日本語", 40)}}},
	}
	newest := uint64(len(events))
	if err := out.Send(&agboxv1.WatchEventsResponse{NewestPosition: newest}); err != nil {
		return err
	}
	for i, ev := range events {
		ev.SandboxId, ev.Sequence = boxes[i%2].GetSandboxId(), uint64(i+1)
		ev.OccurredAt = timestamppb.New(time.Date(2026, 5, 4, 12, 0, i, 0, time.UTC))
		if err := out.Send(&agboxv1.WatchEventsResponse{Position: uint64(i + 1), Event: ev}); err != nil {
			return err
		}
	}
	<-out.Context().Done()
	return nil
}

func (recorded) Doctor(context.Context, *agboxv1.DoctorRequest) (*agboxv1.DoctorResponse, error) {
	return &agboxv1.DoctorResponse{OtherInstallContainers: 2, Findings: []*agboxv1.DoctorFinding{
		{Action: agboxv1.DoctorAction_DOCTOR_ACTION_LEAVE, Kind: agboxv1.DoctorKind_DOCTOR_KIND_SANDBOX_RECORD, Name: "web", SandboxId: "k3v9x2m8qh4t", Why: "It is ready."},
		{Action: agboxv1.DoctorAction_DOCTOR_ACTION_REMOVE, Kind: agboxv1.DoctorKind_DOCTOR_KIND_CONTAINER, Name: "agbox-k3v9x2m8qh4t-search-index-of-the-shop", SandboxId: "gone" + hostile,
			Why: "It belongs to no sandbox that exists, and it has been there for longer than the time after which such containers are removed."},
	}}, nil
}

func agentsNow() []*agboxv1.Agent {
	return []*agboxv1.Agent{
		{AgentId: "init", Name: "init", Word: "RUNNING", CreatedAt: past(5 * time.Hour)},
		{AgentId: "agent-1", Name: "fixer", Word: "RUNNING", Class: "coder", Parent: "init", SandboxId: "k3v9x2m8qh4t", Incarnation: 3, Crashes: 2, CreatedAt: past(3 * time.Hour),
			Title: "Fix the tests of the shop, and " + strings.Repeat("then all others ", 10)},
		{AgentId: "agent-2-with-a-long-id-that-its-parent-chose", Parent: "agent-1", Word: "PAUSED/CRASH", Class: "日本語のクラス", SandboxId: boxes[2].GetSandboxId(), Incarnation: 12, Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_DETACHED, CreatedAt: past(time.Minute), Message: hostile},
	}
}

func (recorded) ListAgents(_ context.Context, in *agboxv1.ListAgentsRequest) (*agboxv1.ListAgentsResponse, error) {
	if in.GetAll() {
		return &agboxv1.ListAgentsResponse{Agents: agentsNow()}, nil
	}
	return &agboxv1.ListAgentsResponse{Agents: agentsNow()[1:]}, nil
}

func (recorded) GetAgent(_ context.Context, in *agboxv1.GetAgentRequest) (*agboxv1.GetAgentResponse, error) {
	for _, g := range agentsNow() {
		if g.GetAgentId() == in.GetAgentId() {
			return &agboxv1.GetAgentResponse{Agent: g}, nil
		}
	}
	return &agboxv1.GetAgentResponse{Agent: agentsNow()[0]}, nil
}

func (recorded) ListLeases(context.Context, *agboxv1.ListLeasesRequest) (*agboxv1.ListLeasesResponse, error) {
	return &agboxv1.ListLeasesResponse{Leases: []*agboxv1.LeaseEntry{
		{Lease: &agboxv1.AgentLease{Resource: "file:/workspace/main.go", Mode: agboxv1.LeaseMode_LEASE_MODE_EXCLUSIVE, Fence: 17}, AgentId: "agent-1", Name: "fixer", Verdict: agboxv1.LeaseVerdict_LEASE_VERDICT_GRANTED},
		{Lease: &agboxv1.AgentLease{Resource: "file:/workspace/" + strings.Repeat("deep/", 20) + hostile, Mode: agboxv1.LeaseMode_LEASE_MODE_SHARED}, AgentId: agentsNow()[2].GetAgentId(),
			Verdict: agboxv1.LeaseVerdict_LEASE_VERDICT_WAIT, WaitsFor: []string{"agent-1", "日本語"}},
	}}, nil
}

func (recorded) ReadInbox(context.Context, *agboxv1.ReadInboxRequest) (*agboxv1.ReadInboxResponse, error) {
	return &agboxv1.ReadInboxResponse{Messages: []*agboxv1.AgentMessage{
		{Seq: 1, Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: "init", Text: "The tests are red again: " + strings.Repeat("日本語", 30), At: past(time.Minute)},
		{Seq: 2, Kind: agboxv1.MessageKind_MESSAGE_KIND_CHILD, From: "agent-1", Text: "fixer is COMPLETED.", At: past(time.Minute)},
		{Seq: 1000, Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: agentsNow()[2].GetAgentId(), Stream: "notes", Text: hostile, At: past(time.Hour)},
	}}, nil
}

func (recorded) ListCheckpoints(context.Context, *agboxv1.ListCheckpointsRequest) (*agboxv1.ListCheckpointsResponse, error) {
	return &agboxv1.ListCheckpointsResponse{Checkpoints: []*agboxv1.AgentCheckpoint{
		{Seq: 11, Kind: agboxv1.CheckpointKind_CHECKPOINT_KIND_TURN, Turn: 4, Step: 2, Bytes: 123, Crc32: 0xdeadbeef, ResumePoint: "after the tests"},
		{Seq: 12, Kind: agboxv1.CheckpointKind_CHECKPOINT_KIND_TURN, Turn: 5, Bytes: 1 << 20, Crc32: 7, ResumePoint: strings.Repeat("日本語 ", 30) + hostile},
	}}, nil
}
