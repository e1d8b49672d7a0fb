package server

import (
	"context"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/version"
)

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
