// Package server implements the public API. A handler checks its request, calls the
// ledger or the package that does the work, and converts the answer into messages. It
// makes no decisions about sandboxes itself.
package server

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/version"
	"github.com/agbox/agbox/logs/notify"
	"github.com/agbox/agbox/proto/agbox/caller"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// maxStreams bounds the concurrent calls on one connection.
const maxStreams = 4096

// writeBuffer is how much is collected for one write to a connection, in bytes.
const writeBuffer = 512 << 10

// The flow-control windows. That of a stream suffices for the input of a pipe. That of a
// connection is so large that blocked streams do not delay others. With fixed sizes, gRPC
// does not estimate the bandwidth, which a local socket does not need.
const (
	inputWindow = 512 << 10
	connWindow  = 16 << 20
)

// Options are the dependencies of a Server.
type Options struct {
	About  About
	Ledger *ledger.Ledger
	Engine Engine
	Loop   Loop
	Room   Room
	Execs  Execs
	Files  Files
	Agents Agents
	// Examiner implements Doctor.
	Examiner Examiner
	// Admission decides about sandboxes before they have a record.
	Admission *admission.Controller
	// Rules are the rules of the .proto files, for checking requests.
	Rules protovalidate.Validator
	// Logs wakes followers of log files.
	Logs  *notify.Notifier
	Paths paths.Install
	// AutoPool is how many sandboxes are kept ready of what was created last.
	AutoPool int
	// Pools are those of the configuration; see Server.KeepPools.
	Pools []PoolTemplate
	// Upgrade checks a binary and replaces the daemon by it after the answer. An empty
	// path means the default one.
	Upgrade func(ctx context.Context, binary string) (*agboxv1.UpgradeDaemonResponse, error)
	Log     *slog.Logger
}

// Server serves the API on a socket.
type Server struct {
	grpc     *grpc.Server
	health   *health.Server
	guard    *guard
	life     *lifetime
	calls    *inFlight
	pools    *poolCalls
	stopOnce sync.Once
	// listener is that of Serve.
	listener atomic.Pointer[Listener]
}

// sandboxService is SandboxService: groups of calls, each with its own dependencies.
type sandboxService struct {
	unanswered
	*daemonCalls
	*sandboxCalls
	*execCalls
	*eventCalls
	*imageCalls
	*statsCalls
}

// unanswered handles calls that no group implements. It is embedded one level deeper than
// the groups, so that their methods take precedence.
type unanswered struct {
	agboxv1.UnimplementedSandboxServiceServer
}

func newSandboxService(o Options, life *lifetime) sandboxService {
	return sandboxService{
		daemonCalls:  &daemonCalls{about: o.About, loop: o.Loop, examiner: o.Examiner, upgrade: o.Upgrade},
		sandboxCalls: &sandboxCalls{ledger: o.Ledger, loop: o.Loop, room: o.Room, admission: o.Admission, autoPool: o.AutoPool, life: life, log: o.Log},
		execCalls:    &execCalls{ledger: o.Ledger, execs: o.Execs, paths: o.Paths, logs: o.Logs, life: life},
		eventCalls:   &eventCalls{ledger: o.Ledger, life: life},
		imageCalls:   &imageCalls{engine: o.Engine, admission: o.Admission, loop: o.Loop, life: life},
		statsCalls:   &statsCalls{ledger: o.Ledger, engine: o.Engine, installID: o.About.InstallID, log: o.Log, life: life},
	}
}

// New makes a server with reflection and health checks. Serve starts it.
func New(o Options) *Server {
	life := newLifetime()
	s := &Server{
		health: health.NewServer(), life: life, calls: new(inFlight),
		guard: &guard{rules: o.Rules, log: o.Log, life: life},
	}
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(caller.MaxAnswer),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ForceServerCodecV2(caller.Codec),
		grpc.StaticStreamWindowSize(inputWindow),
		grpc.StaticConnWindowSize(connWindow),
		// Logs are sent in few, long writes. Idle connections share the buffers.
		grpc.WriteBufferSize(writeBuffer),
		grpc.SharedWriteBuffer(true),
		experimental.BufferPool(caller.Buffers),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.StatsHandler(s.calls),
		grpc.ChainStreamInterceptor(s.guard.stream),
		grpc.UnknownServiceHandler(unknown),
	)
	services := registrar{Server: s.grpc, guard: s.guard}
	sandboxes := newSandboxService(o, life)
	agboxv1.RegisterSandboxServiceServer(services, sandboxes)
	agboxv1.RegisterAgentServiceServer(services, &agentCalls{
		ledger: o.Ledger, loop: o.Loop, incarnations: o.Agents, admission: o.Admission, life: life, output: sandboxes.execCalls,
		checkpoints: retention.NewCheckpoints(o.Paths),
	})
	s.pools = &poolCalls{ledger: o.Ledger, loop: o.Loop, admission: o.Admission, templates: o.Pools, log: o.Log, failed: make(map[string]error)}
	agboxv1.RegisterPoolServiceServer(services, s.pools)
	agboxv1.RegisterFileServiceServer(services, fileCalls{ledger: o.Ledger, files: o.Files, loop: o.Loop, paths: o.Paths, life: life})
	healthv1.RegisterHealthServer(services, s.health)
	described := reflection.ServerOptions{Services: s.grpc, DescriptorResolver: agboxv1.Files}
	reflectionv1.RegisterServerReflectionServer(services, reflection.NewServerV1(described))
	reflectionv1alpha.RegisterServerReflectionServer(services, reflection.NewServer(described))
	for service := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(service, healthv1.HealthCheckResponse_SERVING)
	}
	return s
}

// Serve answers calls until Stop.
func (s *Server) Serve(lis *Listener) error {
	s.listener.Store(lis)
	return s.grpc.Serve(lis)
}

// KeepPools sets the pools of the configuration, and tries again until all are set or ctx ends.
func (s *Server) KeepPools(ctx context.Context) { s.pools.keep(ctx) }

// Pause stops accepting connections on the socket of Serve. It waits up to 2 s for the
// greetings of accepted connections and closes those without. Existing connections are
// still served. Stop follows.
func (s *Server) Pause(lis *Listener) { lis.pause() }

// Stop announces the end to all peers, ends streams with a status that makes clients
// resume, and waits for the running calls and until each peer has acknowledged that it
// sends no further call, at most until ctx ends. Then it closes the connections, even
// those whose peer does not read. ended is closed when no call is left: one that waits
// for a path of this machine may never end.
func (s *Server) Stop(ctx context.Context) (ended <-chan struct{}) {
	s.stopOnce.Do(func() {
		s.health.Shutdown()
		close(s.life.stopping)
	})
	done := make(chan struct{})
	go func() { // ends with the calls
		defer close(done)
		s.grpc.GracefulStop()
	}()
	s.calls.await(ctx, s.listener.Load(), done)
	all := make(chan struct{})
	go func() { // ends with the calls
		defer close(all)
		s.grpc.Stop() // waits for GracefulStop if all peers have gone
		<-done
		s.life.receivers.Wait()
		s.life.senders.Wait()
	}()
	return all
}

// About has the daemon's information about itself.
type About struct {
	InstallID string
	StartedAt time.Time
	DataDir   string
	// UpgradeError is the error of a failed upgrade, usually empty.
	UpgradeError string
	// Policy is the operator's policy, for people.
	Policy string
}

// daemonCalls answers the calls about the daemon itself.
type daemonCalls struct {
	about    About
	loop     Loop
	examiner Examiner
	upgrade  func(ctx context.Context, binary string) (*agboxv1.UpgradeDaemonResponse, error)
}

// Ping returns the identity and the state of the daemon.
func (s *daemonCalls) Ping(context.Context, *agboxv1.PingRequest) (*agboxv1.PingResponse, error) {
	engine := s.loop.Health()
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
		InstallId: s.about.InstallID,
		StartedAt: timestamppb.New(s.about.StartedAt),
		DataDir:   s.about.DataDir,
		Engine:    health,

		UpgradeError: s.about.UpgradeError,
		Policy:       s.about.Policy,
	}, nil
}

// Doctor compares records, engine and files.
func (s *daemonCalls) Doctor(ctx context.Context, req *agboxv1.DoctorRequest) (*agboxv1.DoctorResponse, error) {
	if req.GetAdoptEngine() {
		if err := s.loop.AdoptEngine(ctx); err != nil {
			return nil, err
		}
	}
	return s.examiner.Examine(ctx, req.GetFix())
}

// UpgradeDaemon checks the new binary and returns. The replacement follows.
func (s *daemonCalls) UpgradeDaemon(ctx context.Context, req *agboxv1.UpgradeDaemonRequest) (*agboxv1.UpgradeDaemonResponse, error) {
	return s.upgrade(ctx, req.GetBinary())
}
