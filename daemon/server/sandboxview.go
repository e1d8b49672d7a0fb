package server

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
)

// handle returns the summary of a sandbox.
func (s *sandboxCalls) handle(sb ledger.Sandbox) *agboxv1.SandboxHandle {
	condition := s.loop.Condition(sb)
	return &agboxv1.SandboxHandle{
		SandboxId:         sb.ID,
		State:             sb.State,
		LastEventSequence: sb.LastSequence,
		Services:          sb.Spec.GetServices(),
		Labels:            sb.Spec.GetLabels(),
		CreatedAt:         timestamppb.New(sb.CreatedAt),
		Image:             spec.ImageName(sb.Spec),
		ErrorCode:         cmp.Or(sb.ErrorReason, sb.StopReason),
		ErrorMessage:      cmp.Or(sb.ErrorMessage, sb.StopMessage),
		StateChangedAt:    timestamppb.New(sb.StateChangedAt),
		Name:              sb.Name,
		Degraded:          condition.Degraded != "",
		DegradedReason:    condition.Degraded,
		Recovering:        condition.Recovering,
		ActiveExecs:       uint32(len(sb.Execs)),
		ServiceStatus:     serviceStatus(sb),
		Restarting:        sb.Restart,
	}
}

// serviceStatus returns the services in the order of the spec.
func serviceStatus(sb ledger.Sandbox) []*agboxv1.ServiceStatus {
	var shown []*agboxv1.ServiceStatus
	for _, rule := range machine.ServiceRules(sb.Spec) {
		s := sb.Services[rule.Name]
		status := &agboxv1.ServiceStatus{
			Name: rule.Name, Required: rule.Required, State: serviceState(sb, s),
			Starts: s.Start, ErrorCode: s.Reason, ErrorMessage: s.Message,
		}
		if !s.At.IsZero() {
			status.Since = timestamppb.New(s.At)
		}
		shown = append(shown, status)
	}
	return shown
}

func serviceState(sb ledger.Sandbox, s machine.Service) agboxv1.ServiceState {
	switch {
	case s.Reason == agboxv1.ErrorReason_SERVICE_WITHHELD.String():
		return agboxv1.ServiceState_SERVICE_STATE_WAITING
	case sb.State != machine.Pending && sb.State != machine.Ready && s.Phase != machine.Down, s.Phase == machine.Waiting:
		return agboxv1.ServiceState_SERVICE_STATE_WAITING
	case s.Phase == machine.Starting:
		return agboxv1.ServiceState_SERVICE_STATE_STARTING
	case s.Phase == machine.Up:
		return agboxv1.ServiceState_SERVICE_STATE_READY
	}
	return agboxv1.ServiceState_SERVICE_STATE_FAILED
}

func (s *sandboxCalls) containers(ctx context.Context, sb ledger.Sandbox) []*agboxv1.ContainerStatus {
	if sb.Over() {
		return nil
	}
	containers := slices.Clone(s.loop.Containers(ctx, sb))
	// The primary comes first, because its service is empty.
	slices.SortFunc(containers, func(a, b runtime.Container) int { return cmp.Compare(a.Service, b.Service) })
	var shown []*agboxv1.ContainerStatus
	for _, c := range containers {
		shown = append(shown, &agboxv1.ContainerStatus{
			Role:        string(c.Role),
			Service:     c.Service,
			Name:        c.Name,
			ContainerId: c.ID,
			State:       string(c.State),
			ExitCode:    int32(c.ExitCode),
			OomKilled:   c.OOMKilled,
			Health:      c.Health,
			Ports:       publishedPorts(c.Ports),

			MemoryLimitBytes: uint64(c.Limits.Memory), MemoryLimitIsDefault: c.Limits.MemoryByDefault, PidsLimit: uint32(c.Limits.PIDs),
		})
	}
	return shown
}

// hostFolders returns what a sandbox has in its folders on the host.
func (s *sandboxCalls) hostFolders(ctx context.Context, sb ledger.Sandbox) *agboxv1.FolderUse {
	if sb.Over() {
		return nil
	}
	use, known := s.room.Known(ctx, sb.ID)
	if !known {
		return nil
	}
	return &agboxv1.FolderUse{Bytes: use.Bytes, Files: use.Files, MaxBytes: use.MaxBytes, MaxFiles: use.MaxFiles}
}

// publishedPorts returns the ports of a container.
func publishedPorts(ports []runtime.PublishedPort) []*agboxv1.PublishedPort {
	shown := make([]*agboxv1.PublishedPort, 0, len(ports))
	for _, p := range ports {
		shown = append(shown, &agboxv1.PublishedPort{
			ContainerPort: uint32(p.Container), Protocol: portProtocol(p.Protocol), HostIp: p.HostIP, HostPort: uint32(p.Host),
		})
	}
	return shown
}

func portProtocol(word string) agboxv1.PortProtocol {
	switch word {
	case "udp":
		return agboxv1.PortProtocol_PORT_PROTOCOL_UDP
	case "sctp":
		return agboxv1.PortProtocol_PORT_PROTOCOL_SCTP
	}
	return agboxv1.PortProtocol_PORT_PROTOCOL_TCP
}
