package guest

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// reader is a fake supervisor that takes a bounded number of bytes of each call.
type reader struct {
	takes   []int
	got     strings.Builder
	eofs    int
	longest int
}

func (r *reader) stdin(_ context.Context, req *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
	if req.GetOffset() != uint64(r.got.Len()) {
		return nil, rpc.Errorf(rpc.InvalidArgument, "a gap")
	}
	r.longest = max(r.longest, len(req.GetData()))
	n := len(req.GetData())
	if len(r.takes) > 0 {
		if r.takes[0] < 0 {
			r.takes = r.takes[1:]
			return nil, rpc.Errorf(rpc.ResourceExhausted, "full")
		}
		n, r.takes = min(n, r.takes[0]), r.takes[1:]
	}
	r.got.Write(req.GetData()[:n])
	if req.GetEof() && n == len(req.GetData()) {
		r.eofs++
	}
	return &guestv1.WriteStdinResponse{Offset: uint64(r.got.Len()), Open: r.eofs == 0}, nil
}

func TestInputIsSentUntilAllOfItIsWritten(t *testing.T) {
	data := []byte(strings.Repeat("0123456789", rpc.MaxStdin/4))
	for name, takes := range map[string][]int{
		"at once":            nil,
		"in parts":           {100, 0, 3000, 1 << 20},
		"when there is room": {-1, 5, -1},
	} {
		r := &reader{takes: takes}
		c := dial(t, play(t, &actor{stdin: r.stdin}))
		n, open, err := c.WriteStdin(t.Context(), "e", "w", 0, data, true)
		if err != nil || n != uint64(len(data)) || open || r.got.String() != string(data) || r.eofs != 1 || r.longest > rpc.MaxStdin {
			t.Errorf("%s: %d, open %v, %v; %d bytes arrived and %d ends, the longest call %d", name, n, open, err, r.got.Len(), r.eofs, r.longest)
		}
	}
}

func TestInputThatIsNotReadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := dial(t, play(t, &actor{stdin: func(context.Context, *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
		cancel()
		return nil, rpc.Errorf(rpc.ResourceExhausted, "full")
	}}))
	if _, _, err := c.WriteStdin(ctx, "e", "w", 0, []byte("x"), false); !errors.Is(err, context.Canceled) && !errdefs.IsResourceExhausted(err) {
		t.Error(err)
	}
}

func TestAnInputCountThatDecreasesIsTampering(t *testing.T) {
	c := dial(t, play(t, &actor{stdin: func(context.Context, *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
		return &guestv1.WriteStdinResponse{Offset: 3, Open: true}, nil
	}}))
	_, _, err := c.WriteStdin(t.Context(), "e", "w", 5, []byte("x"), false)
	wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
}

func TestInputToAnOldSupervisorIsNotImplemented(t *testing.T) {
	unknown := rpc.Errorf(rpc.Unimplemented, "method WriteStdin")
	c := dial(t, play(t, &actor{stdin: func(context.Context, *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
		return nil, unknown
	}}))
	_, _, err := c.WriteStdin(t.Context(), "e", "w", 0, []byte("x"), false)
	wantReason(t, err, agboxv1.ErrorReason_UNSUPPORTED_SPEC)
}

// processPage lists n processes with pids above after, of which last is the highest.
func processPage(after, last uint32, n int) *guestv1.ProcessesResponse {
	page := &guestv1.ProcessesResponse{At: guestv1.Now()}
	for pid := after + 1; pid <= last && len(page.GetProcesses()) < n; pid++ {
		page.Processes = append(page.Processes, &guestv1.Process{Pid: pid, StartedAt: guestv1.Now(), Command: "sleep 1"})
		page.More = pid < last
	}
	return page
}

func TestProcessesAreListedPageByPage(t *testing.T) {
	for _, of := range []struct {
		last uint32
		want int
		more bool
	}{{1, 1, false}, {1000, 1000, false}, {MaxProcesses, MaxProcesses, false}, {MaxProcesses + 1, MaxProcesses, true}, {math.MaxUint32, MaxProcesses, true}} {
		c := dial(t, play(t, &actor{processes: func(after uint32) (*guestv1.ProcessesResponse, error) {
			return processPage(after, of.last, 300), nil
		}}))
		list, at, more, err := c.Processes(t.Context())
		if err != nil || len(list) != of.want || more != of.more || at.IsZero() {
			t.Fatalf("of %d processes: %d, more %t, at %s: %v", of.last, len(list), more, at, err)
		}
		for i, p := range list {
			if p.GetPid() != uint32(i)+1 {
				t.Fatalf("of %d processes, the one at %d is %v", of.last, i, p)
			}
		}
	}
}

func TestImpossibleProcessesAreTampering(t *testing.T) {
	for what, change := range map[string]func(*guestv1.ProcessesResponse){
		"no time":         func(r *guestv1.ProcessesResponse) { r.At = nil },
		"no end":          func(r *guestv1.ProcessesResponse) { r.Processes, r.More = nil, true },
		"the same again":  func(r *guestv1.ProcessesResponse) { r.Processes[1].Pid = 1 },
		"no pid":          func(r *guestv1.ProcessesResponse) { r.Processes[0].Pid = 0 },
		"a long user":     func(r *guestv1.ProcessesResponse) { r.Processes[0].User = strings.Repeat("u", maxUser+1) },
		"a long state":    func(r *guestv1.ProcessesResponse) { r.Processes[0].State = strings.Repeat("R", maxState+1) },
		"a long command":  func(r *guestv1.ProcessesResponse) { r.Processes[0].Command = strings.Repeat("x", 1<<10+1) },
		"a bad exec":      func(r *guestv1.ProcessesResponse) { r.Processes[0].ExecId = "../x" },
		"no start":        func(r *guestv1.ProcessesResponse) { r.Processes[0].StartedAt.Nanos = -1 },
		"too much time":   func(r *guestv1.ProcessesResponse) { r.Processes[0].CpuMs = math.MaxInt64 },
		"too much memory": func(r *guestv1.ProcessesResponse) { r.Processes[0].MemoryBytes = math.MaxUint64 },
	} {
		c := dial(t, play(t, &actor{processes: func(uint32) (*guestv1.ProcessesResponse, error) {
			page := processPage(0, 2, 2)
			change(page)
			return page, nil
		}}))
		_, _, _, err := c.Processes(t.Context())
		t.Log(what)
		wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
	}
}

func TestAnOldSupervisorListsNoProcesses(t *testing.T) {
	c := dial(t, play(t, &actor{processes: func(uint32) (*guestv1.ProcessesResponse, error) {
		return nil, rpc.Errorf(rpc.Unimplemented, "there is no method Processes")
	}}))
	_, _, _, err := c.Processes(t.Context())
	wantReason(t, err, agboxv1.ErrorReason_UNSUPPORTED_SPEC)
}
