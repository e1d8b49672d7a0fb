package supervisor_test

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// A process that left its session and whose parents have ended still belongs to its exec.
func TestProcessesAreListedWithTheirExecs(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	first := b.start(c, sh("first", "sleep 1001 & sleep 1002"))
	b.start(c, sh("second", "(setsid env -i "+`"$(command -v sleep)"`+" 1003 &) ; exec sleep 1004"))
	want := "first sleep 1001, first sleep 1002, second sleep 1003, second sleep 1004"
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for got := ""; got != want; {
		list, at, _, err := c.Processes(ctx)
		if err != nil {
			t.Fatalf("%v; the last list was %q, want %q", err, got, want)
		}
		got = ""
		for i := 1001; i <= 1004; i++ {
			for _, p := range list {
				if c := p.GetCommand(); path.Base(c) == fmt.Sprint("sleep ", i) {
					got += fmt.Sprintf(", %s sleep %d", p.GetExecId(), i)
				}
			}
		}
		got = strings.TrimPrefix(got, ", ")
		checkListed(t, list, at, first.GetPid(), b.cmd.Process.Pid)
	}
}

func checkListed(t *testing.T, list []*guestv1.Process, at time.Time, leader int32, supervisor int) {
	t.Helper()
	for _, p := range list {
		since := at.Sub(p.GetStartedAt().AsTime())
		if p.GetPid() == uint32(supervisor) && (p.GetExecId() != "" || p.GetMemoryBytes() == 0) {
			t.Errorf("the supervisor is %v", p)
		}
		// The start is known to 10 ms.
		if p.GetPid() != uint32(leader) {
			continue
		}
		if p.GetParentPid() != uint32(supervisor) || p.GetUser() != "root" && os.Getuid() == 0 || len(p.GetState()) != 1 || since < -time.Second {
			t.Errorf("the first process of an exec is %v, %s old", p, since)
		}
	}
}
