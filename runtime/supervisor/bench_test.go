package supervisor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// BenchmarkStartToExit measures the time from Start of /bin/true to the report of its
// exit, with everything on disk.
func BenchmarkStartToExit(b *testing.B) {
	box := newBox(b)
	c, records := box.dial(), box.ends()
	i := 0
	for b.Loop() {
		i++
		id := fmt.Sprint("e", i)
		if _, err := c.Start(context.Background(), request(id, "/bin/true")); err != nil {
			b.Fatal(err)
		}
		if r := next(b, records); r.GetExecId() != id || r.GetExitCode() != 0 {
			b.Fatal(r)
		}
	}
	b.StopTimer()
	for _, line := range strings.Split(mustRead(b, fmt.Sprintf("/proc/%d/smaps_rollup", box.cmd.Process.Pid)), "\n") {
		if strings.HasPrefix(line, "Private_Dirty") || strings.HasPrefix(line, "Pss:") {
			b.Log(line)
		}
	}
}

// BenchmarkOutput measures the throughput from a process into its log.
func BenchmarkOutput(b *testing.B) {
	const size = 256 << 20
	box := newBox(b)
	c, records := box.dial(), box.ends()
	b.SetBytes(size)
	i, writing, before := 0, uint64(0), box.processorTime()
	for b.Loop() {
		i++
		id := fmt.Sprint("e", i)
		_, err := c.Start(context.Background(), request(id, "dd", "if=/dev/zero", "bs=1M", "status=none", fmt.Sprint("count=", size>>20)))
		if err != nil {
			b.Fatal(err)
		}
		r := next(b, records)
		if r.GetStdoutBytes() != size || r.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_EXITED {
			b.Fatal(r)
		}
		writing += r.GetUserUs() + r.GetSystemUs()
		if err := os.Remove(filepath.Join(box.dir, "logs", id+".stdout.log")); err != nil {
			b.Fatal(err)
		}
	}
	gigabytes := float64(i) * size / 1e9
	b.ReportMetric(float64(writing)/1e3/gigabytes, "writer-cpu-ms/GB")
	b.ReportMetric(float64((box.processorTime()-before).Milliseconds())/gigabytes, "supervisor-cpu-ms/GB")
}

func mustRead(tb testing.TB, path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return string(raw)
}
