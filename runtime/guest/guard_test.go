package guest

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// sendSlowly returns the error of sending 1 MiB to a supervisor that reads at most the given
// number of pieces, with a pause after each.
func sendSlowly(t *testing.T, pieces int, pause time.Duration) (err error) {
	synctest.Test(t, func(*testing.T) {
		ours, theirs := net.Pipe()
		read := make(chan struct{})
		go func() {
			defer close(read)
			for range pieces {
				if _, err := io.CopyN(io.Discard, theirs, sendPiece); err != nil {
					return
				}
				<-time.After(pause) // on the bubble's clock
			}
		}()
		_, err = newGuard(ours).Write(make([]byte, 1<<20))
		_ = ours.Close()
		<-read
		_ = theirs.Close()
	})
	return err
}

func TestASupervisorThatReadsSlowlyKeepsItsConnection(t *testing.T) {
	if err := sendSlowly(t, 1<<20/sendPiece, time.Second); err != nil {
		t.Error(err)
	}
}

func TestASupervisorThatStopsReadingLosesItsConnection(t *testing.T) {
	if err := sendSlowly(t, 3, time.Second); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the error is %v, want that time ran out", err)
	}
}
