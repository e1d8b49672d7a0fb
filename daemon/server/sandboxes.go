package server

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/version"
	"github.com/agbox/agbox/runtime"
)

// Ping tells which daemon answers and how it is.
func (s *Server) Ping(context.Context, *agboxv1.PingRequest) (*agboxv1.PingResponse, error) {
	engine := s.Loop.Health()
	health := &agboxv1.EngineStatus{
		Reachable:  engine.Known && engine.Err == nil,
		Version:    engine.Info.Version,
		ApiVersion: engine.Info.APIVersion,
	}
	if engine.Err != nil {
		health.Error = engine.Err.Error()
	}
	return &agboxv1.PingResponse{
		Version:   version.Version,
		Daemon:    "agboxd",
		Pid:       uint32(os.Getpid()),
		InstallId: s.InstallID,
		StartedAt: timestamppb.New(s.StartedAt),
		DataDir:   s.Paths.Data,
		Engine:    health,

		UpgradeError: s.UpgradeError,
	}, nil
}

// CreateSandbox accepts a sandbox.
func (s *Server) CreateSandbox(ctx context.Context, req *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSandboxResponse, error) {
	id := req.GetSandboxId()
	if id == "" {
		id = ids.New()
	}
	spec, err := s.Admission.Admit(ctx, id, req)
	if err != nil {
		return nil, err
	}
	sb, err := s.Ledger.Create(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	s.Loop.Enqueue(id)
	return &agboxv1.CreateSandboxResponse{Sandbox: s.handle(sb)}, nil
}

// ResolveSpec says what CreateSandbox would make of a request.
func (s *Server) ResolveSpec(ctx context.Context, req *agboxv1.ResolveSpecRequest) (*agboxv1.ResolveSpecResponse, error) {
	result := s.Admission.Resolve(ctx, req.GetCreate())
	return &agboxv1.ResolveSpecResponse{
		CreateSpec: result.Spec, Problems: result.Problems, Notices: result.Notices,
		HostRequests: admission.HostRequests(req.GetCreate(), result),
	}, nil
}

// GetSandbox returns one sandbox with its spec and containers.
func (s *Server) GetSandbox(ctx context.Context, req *agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
	sb, err := s.Ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return &agboxv1.GetSandboxResponse{
		Sandbox:    s.handle(sb),
		CreateSpec: sb.Spec,
		Containers: s.containers(ctx, sb),
		Loosened:   s.Admission.Loosened(sb.Spec),
	}, nil
}

// ListSandboxes returns the sandboxes that carry all selected labels.
func (s *Server) ListSandboxes(ctx context.Context, req *agboxv1.ListSandboxesRequest) (*agboxv1.ListSandboxesResponse, error) {
	resp := new(agboxv1.ListSandboxesResponse)
	if req.GetIncludeDeleted() {
		past, err := s.Ledger.PastIDs(ctx)
		if err != nil {
			return nil, err
		}
		for _, id := range past {
			sb, err := s.Ledger.Past(ctx, id)
			if err != nil {
				continue // unreadable, or gone since it was listed
			}
			if selected(sb.Spec, req.GetLabelSelector()) {
				resp.Sandboxes = append(resp.Sandboxes, s.handle(sb))
			}
		}
	}
	for _, sb := range s.Ledger.Sandboxes() {
		if selected(sb.Spec, req.GetLabelSelector()) {
			resp.Sandboxes = append(resp.Sandboxes, s.handle(sb))
		}
	}
	newestFirst(resp.GetSandboxes(), (*agboxv1.SandboxHandle).GetCreatedAt, (*agboxv1.SandboxHandle).GetSandboxId)
	return resp, nil
}

func selected(spec *agboxv1.CreateSpec, selector map[string]string) bool {
	for key, want := range selector {
		if have, ok := spec.GetLabels()[key]; !ok || have != want {
			return false
		}
	}
	return true
}

// ResumeSandbox starts a sandbox again.
func (s *Server) ResumeSandbox(ctx context.Context, req *agboxv1.ResumeSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	if err := s.Loop.Probe(ctx); err != nil {
		return nil, err
	}
	return s.wish(ctx, req.GetSandboxId(), s.Ledger.RequestResume)
}

// StopSandbox stops a sandbox and keeps its containers.
func (s *Server) StopSandbox(ctx context.Context, req *agboxv1.StopSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	return s.wish(ctx, req.GetSandboxId(), func(ctx context.Context, id string) (ledger.Sandbox, error) {
		return s.Ledger.RequestStop(ctx, id, "asked for")
	})
}

// DeleteSandbox removes a sandbox.
func (s *Server) DeleteSandbox(ctx context.Context, req *agboxv1.DeleteSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	return s.wish(ctx, req.GetSandboxId(), s.Ledger.RequestDelete)
}

// wish records what the user wants and has the loop see to it.
func (s *Server) wish(ctx context.Context, ref string, record func(context.Context, string) (ledger.Sandbox, error)) (*agboxv1.AcceptedResponse, error) {
	sb, err := s.Ledger.FindSandbox(ctx, ref)
	if err != nil {
		return nil, err
	}
	if !sb.Over() {
		if sb, err = record(ctx, sb.ID); err != nil {
			return nil, err
		}
		s.Loop.Interrupt(sb.ID)
	}
	return &agboxv1.AcceptedResponse{Accepted: true}, nil
}

// DeleteSandboxes removes all sandboxes that carry the selected labels.
func (s *Server) DeleteSandboxes(ctx context.Context, req *agboxv1.DeleteSandboxesRequest) (*agboxv1.DeleteSandboxesResponse, error) {
	resp := new(agboxv1.DeleteSandboxesResponse)
	var failed error
	for _, sb := range s.Ledger.Sandboxes() {
		if !selected(sb.Spec, req.GetLabelSelector()) {
			continue
		}
		if _, err := s.wish(ctx, sb.ID, s.Ledger.RequestDelete); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		resp.DeletedSandboxIds = append(resp.DeletedSandboxIds, sb.ID)
	}
	resp.DeletedCount = uint32(len(resp.GetDeletedSandboxIds()))
	return resp, failed
}

// handle shows a sandbox at a glance.
func (s *Server) handle(sb ledger.Sandbox) *agboxv1.SandboxHandle {
	condition := s.Loop.Condition(sb)
	return &agboxv1.SandboxHandle{
		SandboxId:         sb.ID,
		State:             sb.State,
		LastEventSequence: sb.LastSequence,
		Services:          sb.Spec.GetServices(),
		Labels:            sb.Spec.GetLabels(),
		CreatedAt:         timestamppb.New(sb.CreatedAt),
		Image:             sb.Spec.GetImage(),
		ErrorCode:         sb.ErrorReason,
		ErrorMessage:      sb.ErrorMessage,
		StateChangedAt:    timestamppb.New(sb.StateChangedAt),
		Name:              sb.Name,
		Degraded:          condition.Degraded != "",
		DegradedReason:    condition.Degraded,
		Recovering:        condition.Recovering,
		ActiveExecs:       uint32(len(sb.Execs)),
		ServiceStatus:     serviceStatus(sb),
	}
}

// serviceStatus shows the services in the order of the spec.
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
	case sb.State != machine.Pending && sb.State != machine.Ready && s.Phase != machine.Down, s.Phase == machine.Waiting:
		return agboxv1.ServiceState_SERVICE_STATE_WAITING
	case s.Phase == machine.Starting:
		return agboxv1.ServiceState_SERVICE_STATE_STARTING
	case s.Phase == machine.Up:
		return agboxv1.ServiceState_SERVICE_STATE_READY
	}
	return agboxv1.ServiceState_SERVICE_STATE_FAILED
}

func (s *Server) containers(ctx context.Context, sb ledger.Sandbox) []*agboxv1.ContainerStatus {
	if sb.Over() {
		return nil
	}
	containers := slices.Clone(s.Loop.Containers(ctx, sb))
	// The primary, which has no service, comes first.
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
		})
	}
	return shown
}

// publishedPorts shows the ports of a container.
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
