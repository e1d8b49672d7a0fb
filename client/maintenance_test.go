package client

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// upgrading is a daemon whose next generation answers after several calls.
func upgrading(generations ...*agboxv1.PingResponse) *script {
	var asked, accepted atomic.Int32
	for i, g := range generations {
		g.StartedAt = timestamppb.New(time.Unix(int64(i), 0))
	}
	return &script{
		ping: func(context.Context) (*agboxv1.PingResponse, error) {
			if accepted.Load() > 0 && asked.Add(1) > 3 {
				return generations[1], nil
			}
			return generations[0], nil
		},
		upgrade: func(in *agboxv1.UpgradeDaemonRequest) (*agboxv1.UpgradeDaemonResponse, error) {
			if in.GetBinary() == "/bad" {
				return nil, reject(codes.FailedPrecondition, agboxv1.ErrorReason_UPGRADE_REFUSED, "It is not fit.")
			}
			accepted.Add(1)
			return &agboxv1.UpgradeDaemonResponse{OldVersion: "1", NewVersion: "2", Pid: 7}, nil
		},
	}
}

func TestAnUpgradeIsOverWhenTheNewDaemonAnswers(t *testing.T) {
	h := serve(t, upgrading(&agboxv1.PingResponse{Version: "1", Pid: 7}, &agboxv1.PingResponse{Version: "2", Pid: 7}))
	done, err := h.client().UpgradeDaemon(t.Context(), "/new")
	if err != nil || done != (DaemonUpgrade{OldVersion: "1", NewVersion: "2", PID: 7}) {
		t.Errorf("UpgradeDaemon gives %+v (%v)", done, err)
	}
}

func TestARefusedUpgradeSaysWhy(t *testing.T) {
	h := serve(t, upgrading(&agboxv1.PingResponse{Version: "1"}))
	_, err := h.client().UpgradeDaemon(t.Context(), "/bad")
	if !errors.Is(err, ErrWrongState) || err.Error() != "It is not fit." {
		t.Errorf("UpgradeDaemon gives %v", err)
	}
}

func TestAnUpgradeThatFellBackToTheOldBinaryFails(t *testing.T) {
	h := serve(t, upgrading(&agboxv1.PingResponse{Version: "1"}, &agboxv1.PingResponse{Version: "1", UpgradeError: "no such file"}))
	_, err := h.client().UpgradeDaemon(t.Context(), "")
	if !errors.Is(err, ErrWrongState) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("UpgradeDaemon gives %v", err)
	}
}
