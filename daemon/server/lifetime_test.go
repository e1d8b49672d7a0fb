package server

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	rpcstats "google.golang.org/grpc/stats"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// onePeer is the only peer of a server.
type onePeer struct{ may atomic.Bool }

func (p *onePeer) mayCall() bool { return p.may.Load() }
func (p *onePeer) closeSilent()  {}

func unaryCall() context.Context { return new(inFlight).TagRPC(context.Background(), nil) }

func TestStopWaitsForUnaryCallsAndForPeersThatMayCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls inFlight
		var peer onePeer
		call, stream := unaryCall(), unaryCall()
		calls.HandleRPC(call, &rpcstats.Begin{})
		calls.HandleRPC(stream, &rpcstats.Begin{IsServerStream: true}) // it never ends
		waited := make(chan struct{})
		go func() {
			defer close(waited)
			calls.await(t.Context(), &peer, nil) // the connections never end by themselves
		}()
		still := func(what string) {
			t.Helper()
			<-time.After(time.Minute) // on the clock of the synctest bubble
			select {
			case <-waited:
				t.Fatal("await did not wait for " + what)
			default:
			}
		}
		still("the call")
		peer.may.Store(true)
		calls.HandleRPC(call, &rpcstats.End{})
		still("the peer")
		for range 3 {
			peer.may.Store(false)
			<-time.After(quietLooks * lookEvery / 2)
			late := unaryCall() // sent before the peer's acknowledgement, received after it
			calls.HandleRPC(late, &rpcstats.Begin{})
			calls.HandleRPC(late, &rpcstats.End{})
		}
		ended := time.Now()
		<-waited
		if took := time.Since(ended); took < quietLooks*lookEvery || took > (quietLooks+1)*lookEvery {
			t.Errorf("after the last call await took %v, want %v", took, quietLooks*lookEvery)
		}
		calls.HandleRPC(stream, &rpcstats.End{})
		if running, begun := calls.count(); running != 0 || begun != 4 {
			t.Errorf("%d calls of %d run", running, begun)
		}
	})
}

func TestStopEndsWithTheConnectionsOrItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls inFlight
		done := make(chan struct{})
		close(done)
		calls.HandleRPC(unaryCall(), &rpcstats.Begin{})
		calls.await(t.Context(), new(onePeer), done)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		calls.await(ctx, new(onePeer), nil)
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("await took %v, want the time that it was given", took)
		}
	})
}

// endless is a stream that accepts everything.
type endless struct{ grpc.ServerStream }

func (endless) SendMsg(any) error { return nil }

func TestAStreamThatAlwaysSendsNoticesTheEndOfTheDaemon(t *testing.T) {
	stopping := make(chan struct{})
	stream := &checkedStream{ServerStream: endless{}, stopping: stopping}
	if err := stream.SendMsg(nil); err != nil {
		t.Fatal(err)
	}
	close(stopping)
	if err := stream.SendMsg(nil); !errdefs.IsUnavailable(err) {
		t.Errorf("SendMsg gives %v, want that the daemon stops", err)
	}
}

// Otherwise the client would repeat completed work, or believe that it was not done.
func TestTheAnswerToAnUploadIsSentAlsoWhenTheDaemonStops(t *testing.T) {
	s := bare(t)
	close(s.life.stopping)
	answer := func(_ any, stream grpc.ServerStream) error { return stream.SendMsg(&agboxv1.CopyInResponse{}) }
	if err := s.stream(nil, endless{}, &grpc.StreamServerInfo{IsClientStream: true}, answer); err != nil {
		t.Errorf("an upload: %v", err)
	}
	if err := s.stream(nil, endless{}, &grpc.StreamServerInfo{IsServerStream: true}, answer); err == nil {
		t.Error("a download goes on")
	}
}

func TestStopDoesNotWaitForACallThatNeverEnds(t *testing.T) {
	for name, peerGone := range map[string]bool{"of a client that waits": false, "of a client that has gone": true} {
		t.Run(name, func(t *testing.T) {
			began, hangs := make(chan struct{}), make(chan struct{})
			s := New(Options{Rules: bare(t).rules, Log: slog.New(slog.DiscardHandler), Upgrade: func(context.Context, string) (*agboxv1.UpgradeDaemonResponse, error) {
				close(began)
				<-hangs
				return nil, nil
			}})
			socket := filepath.Join(t.TempDir(), "s")
			inner, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- s.Serve(NewListener(inner, slog.New(slog.DiscardHandler))) }()
			conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			answered := make(chan error, 1)
			go func() {
				_, err := agboxv1.NewSandboxServiceClient(conn).UpgradeDaemon(t.Context(), new(agboxv1.UpgradeDaemonRequest))
				answered <- err
			}()
			<-began
			if peerGone {
				_ = conn.Close()
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			ended := s.Stop(over)
			if err := <-answered; err == nil {
				t.Error("the call was answered")
			}
			select {
			case <-ended:
				t.Error("the call is said to have ended")
			default:
			}
			close(hangs)
			<-ended
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}
