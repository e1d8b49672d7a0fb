package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

func hello(ctx context.Context, c *rpc.Client, req *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return rpc.Call[guestv1.HelloResponse](ctx, c, "guest.v1.Supervisor/Hello", req)
}

// frame encodes a frame with any content.
func frame(h rpc.Header, content string) []byte {
	h.Length = uint32(len(content))
	buf := make([]byte, rpc.HeaderLen)
	rpc.PutHeader(buf, h)
	return append(buf, content...)
}

// against returns a client, and the other end of its connection.
func against(t testing.TB) (*rpc.Client, net.Conn) {
	ours, theirs := net.Pipe()
	c := rpc.NewClient(ours)
	t.Cleanup(func() { _ = theirs.Close(); c.Close() })
	return c, theirs
}

// read returns the next frame that a client sends.
func read(t testing.TB, conn net.Conn) []byte {
	t.Helper()
	head := make([]byte, rpc.HeaderLen)
	if _, err := io.ReadFull(conn, head); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, rpc.ParseHeader(head).Length)
	if _, err := io.ReadFull(conn, content); err != nil {
		t.Fatal(err)
	}
	return append(head, content...)
}

// The library of ttrpc sent these bytes: an older supervisor may have it.
func TestRequestsAreTheBytesOfTheLibrary(t *testing.T) {
	c, conn := against(t)
	var calls sync.WaitGroup
	defer calls.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls.Go(func() { _, _ = hello(ctx, c, &guestv1.HelloRequest{Protocol: 3, DaemonVersion: "v1"}) })
	if got := read(t, conn); string(got) != "\x00\x00\x00$\x00\x00\x00\x01\x01\x00\n\x13guest.v1.Supervisor\x12\x05Hello\x1a\x06\b\x03\x12\x02v1" {
		t.Errorf("a call is sent as %q", got)
	}
	calls.Go(func() {
		_, _ = c.Stream(ctx, "guest.v1.Supervisor/Watch", &guestv1.WatchRequest{ExecIds: []string{"e"}})
	})
	if got := read(t, conn); string(got) != "\x00\x00\x00!\x00\x00\x00\x03\x01\x01\n\x13guest.v1.Supervisor\x12\x05Watch\x1a\x03\n\x01e" {
		t.Errorf("a call with a stream of replies is sent as %q", got)
	}
}

// Nobody reads the further replies of a call that has failed.
func TestACallThatIsAnsweredByAStreamHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, conn := against(t)
		go func() {
			read(t, conn)
			for range 4 {
				_, _ = conn.Write(frame(rpc.Header{StreamID: 1, Type: rpc.Data}, ""))
			}
			read(t, conn)
			_, _ = conn.Write(frame(rpc.Header{StreamID: 3, Type: rpc.Response}, ""))
		}()
		begun := time.Now()
		if _, err := hello(t.Context(), c, &guestv1.HelloRequest{}); err == nil {
			t.Error("a stream is a reply")
		}
		if _, err := hello(t.Context(), c, &guestv1.HelloRequest{}); err != nil {
			t.Error(err)
		}
		if d := time.Since(begun); d > 0 { // no time passes in the test but that of timers
			t.Errorf("the second call waited for %s", d)
		}
	})
}

func TestACallTellsItsDeadline(t *testing.T) {
	c, conn := against(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var calls sync.WaitGroup
	calls.Go(func() { _, _ = hello(ctx, c, &guestv1.HelloRequest{}) })
	var req guestv1.CallRequest
	if err := req.UnmarshalVT(read(t, conn)[rpc.HeaderLen:]); err != nil {
		t.Fatal(err)
	}
	if d := time.Duration(req.GetTimeoutNano()); d <= 0 || d > time.Minute {
		t.Errorf("the deadline is in %s", d)
	}
	cancel()
	calls.Wait()
}

// sendSlowly returns the error of a call with 1 MiB to a server that reads at most the given
// number of pieces, with a pause after each.
func sendSlowly(t *testing.T, pieces int) (err error) {
	synctest.Test(t, func(*testing.T) {
		ours, theirs := net.Pipe()
		c := rpc.NewClient(ours)
		var reading sync.WaitGroup
		reading.Go(func() {
			for range pieces {
				if _, err := io.CopyN(io.Discard, theirs, 64<<10); err != nil {
					return
				}
				<-time.After(time.Second) // on the bubble's clock
			}
			if pieces > 3 {
				go func() { _, _ = io.Copy(io.Discard, theirs) }() // ends with the connection
				_, _ = theirs.Write(frame(rpc.Header{StreamID: 1, Type: rpc.Response}, ""))
			}
		})
		_, err = rpc.Call[guestv1.WriteStdinResponse](context.Background(), c, "s/m", &guestv1.WriteStdinRequest{Data: make([]byte, 1<<20)})
		c.Close()
		reading.Wait()
		_ = theirs.Close()
	})
	return err
}

func TestAServerThatReadsSlowlyKeepsItsConnection(t *testing.T) {
	if err := sendSlowly(t, 16); err != nil {
		t.Error(err)
	}
}

func TestAServerThatStopsReadingLosesItsConnection(t *testing.T) {
	if err := sendSlowly(t, 3); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the error is %v, want that time ran out", err)
	}
}

func TestARequestThatIsTooLongIsNotSent(t *testing.T) {
	c, _ := against(t)
	_, err := hello(t.Context(), c, &guestv1.HelloRequest{DaemonVersion: strings.Repeat("x", rpc.MaxFrame)})
	if e, ok := errors.AsType[*rpc.Error](err); !ok || e.Code != rpc.ResourceExhausted {
		t.Error(err)
	}
}

func TestALateReplyIsIgnored(t *testing.T) {
	c, conn := against(t)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { _, err := hello(ctx, c, &guestv1.HelloRequest{}); failed <- err }()
	read(t, conn)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	go func() { _, err := hello(t.Context(), c, &guestv1.HelloRequest{}); failed <- err }()
	read(t, conn)
	for _, stream := range []uint32{1, 3} {
		if _, err := conn.Write(frame(rpc.Header{StreamID: stream, Type: rpc.Response}, "")); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

func TestAllCallsFailWithTheConnection(t *testing.T) {
	c, conn := against(t)
	failed := make(chan error)
	for range 8 {
		go func() { _, err := hello(t.Context(), c, &guestv1.HelloRequest{}); failed <- err }()
		read(t, conn)
	}
	stream := make(chan *rpc.Replies)
	go func() {
		s, err := c.Stream(t.Context(), "s/m", &guestv1.WatchRequest{})
		if err != nil {
			t.Error(err)
		}
		stream <- s
	}()
	read(t, conn)
	s := <-stream
	_ = conn.Close()
	for range 8 {
		if err := <-failed; !errors.Is(err, rpc.ErrClosed) {
			t.Error(err)
		}
	}
	if err := s.Recv(&guestv1.WatchResponse{}); !errors.Is(err, rpc.ErrClosed) {
		t.Error(err)
	}
	<-c.Done()
	if _, err := hello(t.Context(), c, &guestv1.HelloRequest{}); !errors.Is(err, rpc.ErrClosed) || c.Breach() != nil {
		t.Error(err, c.Breach())
	}
}

func TestAServerThatBreaksTheProtocolLosesItsConnection(t *testing.T) {
	for name, sent := range map[string][]byte{
		"a request":      frame(rpc.Header{StreamID: 1, Type: rpc.Request}, ""),
		"another type":   frame(rpc.Header{StreamID: 1, Type: 77}, ""),
		"no stream":      frame(rpc.Header{StreamID: 99, Type: rpc.Response}, ""),
		"a second reply": bytes.Repeat(frame(rpc.Header{StreamID: 1, Type: rpc.Response}, ""), 2),
		"a long reply":   frame(rpc.Header{StreamID: 1, Type: rpc.Data}, strings.Repeat("x", rpc.MaxReply+1)),
		"4 GiB":          {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 2, 0},
	} {
		c, conn := against(t)
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = hello(t.Context(), c, &guestv1.HelloRequest{}) })
		read(t, conn)
		calls.Go(func() { _, _ = conn.Write(sent) })
		<-c.Done()
		calls.Wait()
		if err := c.Breach(); !errors.Is(err, rpc.ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A stream that nobody reads fails; a call beside it does not.
func TestAStreamThatIsNotReadFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		c := rpc.NewClient(ours)
		var work sync.WaitGroup
		work.Go(func() {
			read(t, theirs)
			for range 66 { // one more than the buffer has room for, and one for nobody
				_, _ = theirs.Write(frame(rpc.Header{StreamID: 1, Type: rpc.Data}, ""))
			}
			read(t, theirs)
			_, _ = theirs.Write(frame(rpc.Header{StreamID: 3, Type: rpc.Response}, ""))
		})
		s, err := c.Stream(t.Context(), "s/m", &guestv1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hello(t.Context(), c, &guestv1.HelloRequest{}); err != nil {
			t.Errorf("a call beside it: %v", err)
		}
		for range 64 {
			if err := s.Recv(&guestv1.WatchResponse{}); err != nil {
				t.Errorf("a reply that came in time: %v", err)
			}
		}
		if err := s.Recv(&guestv1.WatchResponse{}); !errors.Is(err, rpc.ErrSlowReader) {
			t.Error(err)
		}
		c.Close()
		work.Wait()
		_ = theirs.Close()
	})
}

// FuzzAServerMaySendAnything: no bytes make a client panic, or block its calls for longer
// than their connection.
func FuzzAServerMaySendAnything(f *testing.F) {
	ok := frame(rpc.Header{StreamID: 1, Type: rpc.Response}, "\x12\x02\x08\x01")
	f.Add(ok)
	f.Add(bytes.Repeat(ok, 2))
	f.Add(ok[:len(ok)-1])
	f.Add(ok[:7])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 2, 0})
	f.Add(frame(rpc.Header{StreamID: 1, Type: rpc.Response}, "\x0a\x7f"))                                         // a status of 127 bytes that is not there
	f.Add(frame(rpc.Header{StreamID: 1, Type: rpc.Response}, "\x0a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x01")) // a code of 64 bits
	f.Add(frame(rpc.Header{StreamID: 1, Type: rpc.Response}, "\x12\x04\x1a\x02\xff\xfe"))                         // no UTF-8
	f.Add(bytes.Repeat(frame(rpc.Header{StreamID: 1, Type: rpc.Data}, ""), 10))                                   // a stream instead of a reply
	f.Add(bytes.Repeat(frame(rpc.Header{StreamID: 3, Type: rpc.Data}, "\x08\x01"), 70))                           // more than the buffer
	f.Add(frame(rpc.Header{StreamID: 3, Type: rpc.Data, Flags: rpc.RemoteClosed}, "\x08\x01"))
	f.Add(frame(rpc.Header{StreamID: 3, Type: rpc.Data, Flags: rpc.RemoteClosed | rpc.NoData}, ""))
	f.Add(append(frame(rpc.Header{StreamID: 3, Type: rpc.Response}, ""), frame(rpc.Header{StreamID: 3, Type: rpc.Data}, "")...))
	f.Add(frame(rpc.Header{StreamID: 1, Type: rpc.Request}, ""))
	f.Fuzz(func(t *testing.T, sent []byte) {
		c, conn := against(t)
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = hello(t.Context(), c, &guestv1.HelloRequest{}) })
		read(t, conn)
		calls.Go(func() {
			s, err := c.Stream(t.Context(), "s/m", &guestv1.WatchRequest{})
			for err == nil {
				err = s.Recv(&guestv1.WatchResponse{})
			}
		})
		read(t, conn)
		_, _ = conn.Write(sent)
		_ = conn.Close()
		calls.Wait()
		<-c.Done()
	})
}
