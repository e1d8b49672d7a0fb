package links_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noReports takes nothing: there are no execs.
type noReports struct{}

func (noReports) Report(context.Context, *links.Link, *guestv1.ExecRecord) {}
func (noReports) Missed(context.Context, *links.Link, string)              {}

// supervisor greets and confirms that it reports exits.
type supervisor struct {
	guestv1.SupervisorService
}

func (supervisor) Hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{Protocol: 1, BootId: "boot"}, nil
}

func (supervisor) Watch(ctx context.Context, _ *guestv1.WatchRequest, stream guestv1.Supervisor_WatchServer) error {
	if err := stream.Send(&guestv1.WatchResponse{Watching: true}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func wantTampered(t *testing.T, err error) {
	t.Helper()
	f := fault.Of(err)
	if f == nil || f.Reason != agboxv1.ErrorReason_SUPERVISOR_TAMPERED || f.Metadata["sandbox_id"] != "a" {
		t.Errorf("the error is %v", err)
	}
}

func TestNobodyWaitsForASupervisorThatCannotBeTrusted(t *testing.T) {
	links.SetWaitAtMost(t, time.Hour)
	b := guesttest.New(t)
	b.Links.SendReports(noReports{})
	socket := filepath.Join(b.Install.GuestLink("a"), paths.LinkSocket)
	if err := os.Symlink("/run/docker.sock", socket); err != nil {
		t.Fatal(err)
	}
	// In place of the loop: it tries whenever it is asked.
	var trying sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer trying.Wait()
	defer stop()
	trying.Go(func() {
		for {
			select {
			case <-b.Lost:
				_ = b.Links.Connect(ctx, "a") // Wait tells
			case <-ctx.Done():
				return
			}
		}
	})
	wait := func() <-chan error {
		ended := make(chan error, 1)
		trying.Go(func() {
			_, err := b.Links.Wait(t.Context(), "a")
			ended <- err
		})
		return ended
	}
	early := wait()
	wantTampered(t, b.Links.Connect(t.Context(), "a"))
	wantTampered(t, <-early)
	wantTampered(t, <-wait())

	// The supervisor's own socket is put back.
	b.Serve(supervisor{}, nil)
	if err := <-wait(); err != nil || !b.Links.Connected("a") {
		t.Errorf("Wait gives %v", err)
	}
}
