package client

import (
	"context"
	"fmt"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"
)

// upgradePause is the pause between two checks for the new daemon. The old one still
// answers on its existing connections.
const upgradePause = 5 * time.Millisecond

// DaemonUpgrade describes a completed upgrade.
type DaemonUpgrade struct {
	OldVersion, NewVersion string
	// PID is the process id of the daemon. It does not change.
	PID int
}

// UpgradeDaemon replaces the daemon by another binary and returns when the new one
// answers. The path must be absolute. An empty path means the path from which the daemon
// was started, which may have a newer binary by now. If the binary fails its check, the
// error is ErrWrongState and nothing changes. Calls and streams of this and other clients
// continue.
func (c *Client) UpgradeDaemon(ctx context.Context, binary string) (DaemonUpgrade, error) {
	before, err := c.Ping(ctx)
	if err != nil {
		return DaemonUpgrade{}, err
	}
	in := &agboxv1.UpgradeDaemonRequest{Binary: binary}
	out, err := unary(ctx, c, agboxv1.SandboxServiceClient.UpgradeDaemon, in, atMostOnce)
	if err != nil {
		return DaemonUpgrade{}, err
	}
	after, err := c.awaitSuccessor(ctx, before.GetStartedAt().AsTime())
	if err != nil {
		return DaemonUpgrade{}, err
	}
	if why := after.GetUpgradeError(); why != "" {
		return DaemonUpgrade{}, &Error{Code: codes.FailedPrecondition, Reason: agboxv1.ErrorReason_UPGRADE_REFUSED.String(),
			Message: fmt.Sprintf("The new agboxd passed its check but could not be executed, so the old one (%s) keeps running: %s. Fix that and try again.",
				after.GetVersion(), why)}
	}
	return DaemonUpgrade{OldVersion: out.GetOldVersion(), NewVersion: after.GetVersion(), PID: int(after.GetPid())}, nil
}

// awaitSuccessor returns the first answer of a daemon whose start time differs from the
// given one.
func (c *Client) awaitSuccessor(ctx context.Context, started time.Time) (*agboxv1.PingResponse, error) {
	look := time.NewTicker(upgradePause)
	defer look.Stop()
	for {
		now, err := c.Ping(ctx)
		if err != nil {
			return nil, err
		}
		if !now.GetStartedAt().AsTime().Equal(started) {
			return now, nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, ended(ctx.Err())
		}
	}
}
