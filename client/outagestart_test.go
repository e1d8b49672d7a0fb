package client

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAStartThatFailsIsTheReason: each case says what the starts of a crashed daemon give, one after
// another; the last one recurs. "crashes" is a daemon that answered and is gone at once, "cut" a start
// that is on its way until its context ends.
func TestAStartThatFailsIsTheReason(t *testing.T) {
	for name, tc := range map[string]struct {
		follows bool
		starts  []string
		// want is the error. Its "..." stands for how long the daemon was waited for.
		want  string
		after time.Duration
	}{
		"a call ends with the second reason":      {false, []string{"not installed", "still not installed"}, "still not installed", restartAfter + startAgainAfter},
		"a stream waits, and has the last reason": {true, []string{"truncated", "full"}, "... full", DefaultReconnect},
		"a call is cut off":                       {false, []string{"cut"}, "... Start it with `agbox daemon start`.", DefaultReconnect},
		"a reason outlives a cut":                 {true, []string{"truncated", "cut"}, "... truncated", DefaultReconnect},
		"a reason outlives a cut in a call":       {false, []string{"truncated", "cut"}, "... truncated", DefaultReconnect},
		"a daemon that crashes has started":       {true, []string{"truncated", "crashes"}, "... Start it with `agbox daemon start`.", DefaultReconnect},
		"two failures in a row end a call":        {false, []string{"truncated", "crashes", "truncated", "full"}, "full", restartAfter + 3*startAgainAfter},
		"a call outlives one failure":             {false, []string{"truncated", "", ""}, "", restartAfter + startAgainAfter},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "sock")
			if err := os.WriteFile(socket, nil, 0o600); err != nil { // a daemon that crashed leaves it
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				begun, n, up := time.Now(), 0, false
				c := &Client{socket: socket, reconnect: DefaultReconnect}
				c.autostart = func(ctx context.Context) error {
					how := tc.starts[min(n, len(tc.starts)-1)]
					n++
					switch how {
					case "":
						up = true
						return nil
					case "crashes":
						return nil
					case "cut":
						<-ctx.Done()
						return ended(ctx.Err())
					}
					return startError("%s", how)
				}
				p := c.newPatience()
				if tc.follows {
					p = c.newFollower()
				}
				var err error
				for err == nil && !up {
					err = p.again(t.Context(), &Error{Code: codes.Unavailable, lost: true})
				}
				rest, waited := strings.CutPrefix(tc.want, "...")
				want := rest
				if waited {
					want = "agboxd at " + socket + " went away and did not come back within 30s; commands in the sandboxes keep running." + rest
				}
				switch {
				case err == nil && want != "", err != nil && err.Error() != want:
					t.Errorf("it ended with %v, want %s", err, want)
				case err != nil && !errors.Is(err, ErrDaemonUnreachable):
					t.Errorf("%v is not of a daemon that is unreachable", err)
				}
				if took := time.Since(begun); took < tc.after-longestPause || took > tc.after+2*longestPause {
					t.Errorf("it ended after %v, want %v", took, tc.after)
				}
			})
		})
	}
}

// served is a stream of a daemon that is killed after a while.
type served struct {
	grpc.ServerStreamingClient[agboxv1.SandboxEvent]
	a time.Duration
}

func (s served) Recv() (*agboxv1.SandboxEvent, error) {
	time.Sleep(s.a)
	return nil, &Error{Code: codes.Unavailable, lost: true}
}

// TestOnlyTheTimeWithoutADaemonIsBounded: a stream on which nothing happens outlives any number of daemons,
// but not one that crashes as soon as it serves.
func TestOnlyTheTimeWithoutADaemonIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		serves time.Duration
		want   bool
	}{"daemons that serve": {10 * time.Second, true}, "daemons that crash": {0, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &Client{socket: "gone", reconnect: DefaultReconnect}
				c.live.Store(new(connection))
				tries, enough := 0, errors.New("enough")
				open := func(context.Context, *agboxv1.WatchEventsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[agboxv1.SandboxEvent], error) {
					if tries++; tries == 1000 {
						return nil, &Error{Message: enough.Error(), cause: enough}
					}
					if tries%10 > 0 { // it takes a moment until there is another one
						return nil, &Error{Code: codes.Unavailable, lost: true}
					}
					return served{a: tc.serves}, nil
				}
				err := follow(t.Context(), c, open, endless, func() *agboxv1.WatchEventsRequest { return nil }, nil)
				if errors.Is(err, enough) != tc.want {
					t.Errorf("after %d tries it ended with %v", tries, err)
				}
			})
		})
	}
}

func TestAStartSaysHowLongItWaited(t *testing.T) {
	config := inHome(t, "slow")
	install, err := paths.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(install.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for _, tc := range []struct {
		ctx     context.Context
		timeout time.Duration
		want    string
	}{
		{ctx, DefaultStartTimeout, "The call did not complete before its deadline."},
		{t.Context(), 30 * time.Millisecond, "was started but has not answered for 30ms."},
	} {
		s := &starting{install: install, binary: config.Binary, timeout: tc.timeout}
		if err := s.spawn(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.await(tc.ctx); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("with a timeout of %v: %v, want %s", tc.timeout, err, tc.want)
		}
		s.withdraw()
	}
}
