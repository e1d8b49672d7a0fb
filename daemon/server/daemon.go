package server

import (
	"context"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/version"
)

// About is what a daemon says of itself.
type About struct {
	InstallID string
	StartedAt time.Time
	DataDir   string
	// UpgradeError is why this daemon had to go on after an upgrade; mostly empty.
	UpgradeError string
}

// daemonCalls answers the calls about the daemon itself.
type daemonCalls struct {
	about    About
	loop     Loop
	examiner Examiner
	upgrade  func(ctx context.Context, binary string) (*agboxv1.UpgradeDaemonResponse, error)
}

// Ping tells which daemon answers and how it is.
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
	}, nil
}

// Doctor compares records, engine and files.
func (s *daemonCalls) Doctor(ctx context.Context, req *agboxv1.DoctorRequest) (*agboxv1.DoctorResponse, error) {
	return s.examiner.Examine(ctx, req.GetFix())
}

// UpgradeDaemon has the new binary checked and returns; the daemon changes
// after that.
func (s *daemonCalls) UpgradeDaemon(ctx context.Context, req *agboxv1.UpgradeDaemonRequest) (*agboxv1.UpgradeDaemonResponse, error) {
	return s.upgrade(ctx, req.GetBinary())
}
