package guest

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// processPage lists n processes with pids above after, of which last is the highest.
func processPage(after, last uint32, n int) *guestv1.ProcessesResponse {
	page := &guestv1.ProcessesResponse{At: timestamppb.Now()}
	for pid := after + 1; pid <= last && len(page.GetProcesses()) < n; pid++ {
		page.Processes = append(page.Processes, &guestv1.Process{Pid: pid, StartedAt: timestamppb.Now(), Command: "sleep 1"})
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
		return nil, status.Error(codes.Unimplemented, "there is no method Processes")
	}}))
	_, _, _, err := c.Processes(t.Context())
	wantReason(t, err, agboxv1.ErrorReason_UNSUPPORTED_SPEC)
}
