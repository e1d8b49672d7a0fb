package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
)

// sandboxCalls implements the calls about sandboxes.
type sandboxCalls struct {
	ledger    *ledger.Ledger
	loop      Loop
	room      Room
	admission *admission.Controller
	// autoPool is how many are kept ready of what was created last.
	autoPool int
	life     *lifetime
	log      *slog.Logger
}

// CreateSandbox accepts a sandbox.
func (s *sandboxCalls) CreateSandbox(ctx context.Context, req *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSandboxResponse, error) {
	id := admission.IdentifySandbox(ctx, req)
	key, err := requestKey(req)
	if err != nil {
		return nil, err
	}
	// The first answer holds even if the request would not be admitted now.
	sb, again, err := s.ledger.RepeatedCreate(ctx, id, key)
	if err != nil {
		return nil, err
	}
	if again && (!sb.Over() || req.GetSandboxId() == "") {
		return &agboxv1.CreateSandboxResponse{Sandbox: s.handle(sb)}, nil
	}
	spec, err := s.admission.Admit(ctx, id, withHome(ctx, req))
	if err != nil {
		return nil, err
	}
	wish := s.wishOf(ctx, req, spec)
	sb, err = s.takeAhead(ctx, wish, spec, key)
	if err == nil && !sb.Exists() {
		sb, err = s.ledger.CreateKeyed(ctx, id, spec, key)
	}
	if err != nil && req.GetAnyId() { // the same request may have got a sandbox meanwhile, with another id
		if first, again, failed := s.ledger.RepeatedCreate(ctx, id, key); again && failed == nil && !first.Over() {
			sb, err = first, nil
		}
	}
	if err != nil {
		return nil, err
	}
	s.loop.Enqueue(sb.ID)
	s.restock(ctx, wish, sb)
	return &agboxv1.CreateSandboxResponse{Sandbox: s.handle(sb)}, nil
}

// wish is what of a request is made ahead; nil if nothing is. pools are the ids of those that make it.
type wish struct {
	ahead *agboxv1.CreateSpec
	pools []string
	// near are the ids of those that would, but for the environment that their commands of prepare have seen.
	near []string
}

func (s *sandboxCalls) wishOf(ctx context.Context, req *agboxv1.CreateSandboxRequest, resolved *agboxv1.CreateSpec) (w wish) {
	if !req.GetAnyId() || s.autoPool == 0 && !s.ledger.HasPools() {
		return w
	}
	ahead, why := spec.Ahead(resolved)
	if why != "" {
		return w
	}
	w.ahead = ahead
	pools, near, err := s.ledger.PoolsFor(ctx, ahead)
	if err != nil {
		s.log.Warn("pools cannot be read", "error", err)
	}
	for _, p := range pools {
		w.pools = append(w.pools, p.ID)
	}
	for _, p := range near {
		w.near = append(w.near, p.ID)
	}
	return w
}

// takeWithin bounds the looks at what was made ahead: with an engine that is slower, a new one is made.
const takeWithin = time.Second

// takeAhead returns a sandbox that was made ahead, which the request has from then on. It does not exist if
// none is ready.
func (s *sandboxCalls) takeAhead(ctx context.Context, w wish, resolved *agboxv1.CreateSpec, key ledger.RequestKey) (none ledger.Sandbox, err error) {
	looks, cancel := context.WithTimeout(ctx, takeWithin)
	defer cancel()
	for _, pool := range w.pools {
		for _, sb := range s.ledger.Ahead(pool) {
			if !s.loop.Fit(looks, sb, resolved) {
				continue
			}
			if sb, err = s.ledger.Take(ctx, sb.ID, resolved, key); !errors.Is(err, ledger.ErrTaken) {
				return sb, err
			}
		}
	}
	return none, nil
}

// restock has the pools of a request make another sandbox. What no pool makes becomes the pool of what was
// created last. That neither can be noted is no error of the request.
func (s *sandboxCalls) restock(ctx context.Context, w wish, got ledger.Sandbox) {
	var err error
	switch {
	case w.ahead == nil:
		return
	case len(w.pools) > 0 && !got.Taken:
		err = s.ledger.Missed(ctx, w.pools[0])
	case len(w.pools) == 0 && len(w.near) > 0:
		err = s.ledger.Missed(ctx, w.near[0])
		s.loop.Misfit(w.near[0], "The last request with this description had another environment (envs, secret_envs). Commands of prepare see it, so nobody gets what they made with another one.")
	case len(w.pools) == 0 && s.autoPool > 0:
		var p ledger.Pool
		if p, err = s.ledger.SetPool(ctx, ledger.AutoPool, s.autoPool, w.ahead); err == nil {
			w.pools = []string{p.ID}
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("a request cannot be noted in its pool", "error", err)
	}
	for _, pool := range w.pools {
		s.loop.EnqueuePool(pool)
	}
}

// requestKey returns the key of a request with the digest by which a repetition is
// recognized.
func requestKey(req *agboxv1.CreateSandboxRequest) (ledger.RequestKey, error) {
	if req.GetRequestKey() == "" {
		return ledger.RequestKey{}, nil
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return ledger.RequestKey{}, fmt.Errorf("encode the request: %w", err)
	}
	sum := sha256.Sum256(raw)
	return ledger.RequestKey{Key: req.GetRequestKey(), Digest: sum[:], AnyID: req.GetAnyId()}, nil
}

// ResolveSpec returns what CreateSandbox would store for a request.
func (s *sandboxCalls) ResolveSpec(ctx context.Context, req *agboxv1.ResolveSpecRequest) (*agboxv1.ResolveSpecResponse, error) {
	create := withHome(ctx, req.GetCreate())
	result := s.admission.Resolve(ctx, create)
	return &agboxv1.ResolveSpecResponse{
		CreateSpec: result.Spec, Problems: result.Problems, Notices: result.Notices,
		HostRequests: s.admission.HostRequests(ctx, create, result),
	}, nil
}

// GetSandbox returns one sandbox with its spec and containers.
func (s *sandboxCalls) GetSandbox(ctx context.Context, req *agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
	sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if req.GetHandleOnly() {
		return &agboxv1.GetSandboxResponse{Sandbox: s.handle(sb)}, nil
	}
	spec := sb.Spec
	if sb.Name != spec.GetName() {
		spec = proto.CloneOf(spec)
		spec.Name = sb.Name
	}
	return &agboxv1.GetSandboxResponse{
		Sandbox:    s.handle(sb),
		CreateSpec: spec,
		Containers: s.containers(ctx, sb),
		Loosened:   s.admission.Loosened(sb.Spec),

		HostFolders: s.hostFolders(ctx, sb),
	}, nil
}

// ListSandboxes returns the sandboxes with all selected labels.
func (s *sandboxCalls) ListSandboxes(ctx context.Context, req *agboxv1.ListSandboxesRequest) (*agboxv1.ListSandboxesResponse, error) {
	resp := new(agboxv1.ListSandboxesResponse)
	if req.GetIncludeDeleted() {
		past, err := s.ledger.PastIDs(ctx)
		if err != nil {
			return nil, err
		}
		for _, id := range past {
			sb, err := s.ledger.Past(ctx, id)
			if err != nil {
				continue // unreadable, or removed since it was listed
			}
			if sb.Pool == "" && selected(sb.Spec, req.GetLabelSelector()) {
				resp.Sandboxes = append(resp.Sandboxes, s.handle(sb))
			}
		}
	}
	for _, sb := range s.ledger.Owned() {
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
func (s *sandboxCalls) ResumeSandbox(ctx context.Context, req *agboxv1.ResumeSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	if err := s.loop.Probe(ctx); err != nil {
		return nil, err
	}
	return s.request(ctx, req.GetSandboxId(), s.ledger.RequestResume)
}

// StopSandbox stops a sandbox and keeps its containers.
func (s *sandboxCalls) StopSandbox(ctx context.Context, req *agboxv1.StopSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	return s.request(ctx, req.GetSandboxId(), func(ctx context.Context, id string) (ledger.Sandbox, error) {
		if req.GetNow() {
			return s.ledger.RequestStopNow(ctx, id, machine.StopRequested)
		}
		return s.ledger.RequestStop(ctx, id, machine.StopRequested)
	})
}

// RestartSandbox stops a sandbox and starts it again.
func (s *sandboxCalls) RestartSandbox(ctx context.Context, req *agboxv1.RestartSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	if err := s.loop.Probe(ctx); err != nil {
		return nil, err
	}
	return s.request(ctx, req.GetSandboxId(), func(ctx context.Context, id string) (ledger.Sandbox, error) {
		return s.ledger.RequestRestart(ctx, id, req.GetNow())
	})
}

// RenameSandbox gives a sandbox another name.
func (s *sandboxCalls) RenameSandbox(ctx context.Context, req *agboxv1.RenameSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err == nil {
		_, err = s.ledger.Rename(ctx, sb.ID, req.GetName())
	}
	if err != nil {
		return nil, err
	}
	return &agboxv1.AcceptedResponse{Accepted: true}, nil
}

// DeleteSandbox removes a sandbox.
func (s *sandboxCalls) DeleteSandbox(ctx context.Context, req *agboxv1.DeleteSandboxRequest) (*agboxv1.AcceptedResponse, error) {
	how := ledger.Deletion{Now: req.GetNow(), SpareAgents: req.GetSpareAgents(), RemoveLogs: req.GetRemoveLogs()}
	return s.request(ctx, req.GetSandboxId(), func(ctx context.Context, id string) (ledger.Sandbox, error) {
		return s.ledger.RequestDeletion(ctx, id, how)
	})
}

// request records a request of the user and enqueues the sandbox.
func (s *sandboxCalls) request(ctx context.Context, ref string, record func(context.Context, string) (ledger.Sandbox, error)) (*agboxv1.AcceptedResponse, error) {
	sb, err := s.ledger.FindSandbox(ctx, ref)
	if err != nil {
		return nil, err
	}
	if sb, err = record(ctx, sb.ID); err != nil {
		return nil, err
	}
	if !sb.Over() {
		s.loop.Interrupt(sb.ID)
	}
	return &agboxv1.AcceptedResponse{Accepted: true}, nil
}

// DeleteSandboxes removes all sandboxes with the selected labels. It returns those that were
// not being removed already.
func (s *sandboxCalls) DeleteSandboxes(ctx context.Context, req *agboxv1.DeleteSandboxesRequest) (*agboxv1.DeleteSandboxesResponse, error) {
	resp := new(agboxv1.DeleteSandboxesResponse)
	var failed error
	for _, sb := range s.ledger.Owned() {
		if sb.Want == machine.WantDeleted || !selected(sb.Spec, req.GetLabelSelector()) {
			continue
		}
		if _, err := s.request(ctx, sb.ID, s.ledger.RequestDelete); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		resp.DeletedSandboxIds = append(resp.DeletedSandboxIds, sb.ID)
	}
	slices.Sort(resp.DeletedSandboxIds)
	resp.DeletedCount = uint32(len(resp.GetDeletedSandboxIds()))
	return resp, failed
}

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
		Ended:             sb.Ended || sb.Pool != "",
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

// Resolve returns what a text means. It is the only call that takes names and beginnings of
// ids of sandboxes, execs and agents.
func (s *sandboxCalls) Resolve(ctx context.Context, req *agboxv1.ResolveRequest) (*agboxv1.ResolveResponse, error) {
	if err := mayMean(req.GetKind(), req.GetText()); err != nil {
		return nil, err
	}
	list, err := s.ledger.Resolve(ctx, req.GetKind(), req.GetText())
	if err != nil {
		return nil, err
	}
	n := min(len(list), ledger.MaxReferents)
	return &agboxv1.ResolveResponse{Referents: list[:n], More: len(list) > n}, nil
}

var things = map[agboxv1.RefKind]string{
	agboxv1.RefKind_REF_KIND_SANDBOX: "a sandbox", agboxv1.RefKind_REF_KIND_EXEC: "an exec", agboxv1.RefKind_REF_KIND_AGENT: "an agent",
}

// mayMean refuses a text that can be no id, no name and no beginning of an id.
func mayMean(kind agboxv1.RefKind, text string) error {
	if text == "" {
		return invalid("Give %s: its id, the beginning of its id, or its name.", things[kind])
	}
	switch kind {
	case agboxv1.RefKind_REF_KIND_AGENT:
		if len(text) > ids.MaxLen {
			return invalid("An agent has an id of at most %d characters.", ids.MaxLen)
		}
	case agboxv1.RefKind_REF_KIND_SANDBOX:
		if !ids.Valid(text) {
			return invalid("%.80q is not an id or a name: letters, digits, '_', '.' and '-', beginning with a letter or digit, at most 200 characters.", text)
		}
	case agboxv1.RefKind_REF_KIND_EXEC:
		sandbox, exec, within := strings.Cut(text, "/")
		if !ids.Valid(sandbox) || within && !ids.Valid(exec) {
			return invalid("%.80q is not a command: give its id, the beginning of it or its name, alone or as SANDBOX/NAME.", text)
		}
	}
	return nil
}
