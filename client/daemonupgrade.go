package client

import (
	"context"
	"fmt"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"
)

// upgradePause lies between two questions whether the new daemon is there: the
// old one still answers on connections that it has.
const upgradePause = 5 * time.Millisecond

// DaemonUpgrade tells of an upgrade that has taken place.
type DaemonUpgrade struct {
	OldVersion, NewVersion string
	// PID is the process id of the daemon, before and after.
	PID int
}

// UpgradeDaemon has the daemon become another binary and returns when the new
// one answers. The path must be absolute; an empty one is that from which the
// daemon was started, where a newer one may stand by now. A binary that is not
// fit is ErrWrongState and changes nothing. Calls and streams of this and other
// clients go on.
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

// awaitSuccessor returns the first answer of a daemon that did not start at the
// given time.
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
