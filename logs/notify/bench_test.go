package notify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

// follow reads the output of an exec as the daemon does, until it has want bytes.
func follow(tb testing.TB, n *Notifier, dir string, want int) int {
	w := watch(tb, n, dir, "e1")
	defer w.Close()
	d, err := logs.OpenDir(dir)
	must(tb, err)
	defer func() { _ = d.Close() }()
	r, err := d.Open("e1", logs.Cursor{})
	must(tb, err)
	defer func() { _ = r.Close() }()
	total, buf := 0, make([]byte, 256<<10)
	for total < want {
		c, err := r.Next(buf)
		if errors.Is(err, io.EOF) {
			<-w.C()
			continue
		}
		must(tb, err)
		total += len(c.Data)
	}
	return total
}

// The writer of the benchmark makes about 10,000 single writes a second.
const (
	steadyWrites = 20_000
	steadyPause  = 40_000 // nanoseconds; the kernel adds about as much
)

var steadyLine = bytes.Repeat([]byte("x"), 80)

func writeSteadily(dir string) error {
	d, err := logs.OpenDir(dir)
	if err != nil {
		return err
	}
	w, err := d.Create("e1", logs.WriterOptions{Owner: logs.KeepOwner})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for range steadyWrites {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: steadyPause}, nil)
		w.Write(logs.Stdout, time.Now(), steadyLine)
	}
	return w.Close()
}

// BenchmarkFollowingTenThousandWritesASecond reports the share of one processor that
// the notifier and one follower use.
func BenchmarkFollowingTenThousandWritesASecond(b *testing.B) {
	for b.Loop() {
		n, dir := begin(b), b.TempDir()
		cmd := child(b, "write", dir)
		out, err := cmd.StdoutPipe()
		must(b, err)
		must(b, cmd.Start())
		_, err = out.Read(make([]byte, 16))
		must(b, err)
		var before, after unix.Rusage
		must(b, unix.Getrusage(unix.RUSAGE_SELF, &before))
		begin := time.Now()
		follow(b, n, dir, steadyWrites*len(steadyLine))
		must(b, unix.Getrusage(unix.RUSAGE_SELF, &after))
		used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		b.ReportMetric(100*float64(used)/float64(time.Since(begin)), "%cpu")
		must(b, cmd.Wait())
	}
}

// BenchmarkFirstByte reports the latency from a write, after a quiet period, until a
// follower has read it.
func BenchmarkFirstByte(b *testing.B) {
	n, dir := begin(b), b.TempDir()
	d, err := logs.OpenDir(dir)
	must(b, err)
	w, err := d.Create("e1", logs.WriterOptions{Owner: logs.KeepOwner})
	must(b, err)
	r, err := d.Open("e1", logs.Cursor{})
	must(b, err)
	wake := watch(b, n, dir, "e1")
	defer wake.Close()
	arrived, buf := make(chan time.Time), make([]byte, 100)
	go func() {
		defer close(arrived)
		for range wake.C() {
			c, err := r.Next(buf)
			if err == nil && c.Data[0] == 'q' {
				return
			}
			if err == nil {
				arrived <- time.Now()
			}
		}
	}()
	quiet := time.NewTicker(3 * time.Millisecond)
	defer quiet.Stop()
	var took []time.Duration
	for b.Loop() {
		<-quiet.C
		begin := time.Now()
		w.Write(logs.Stdout, begin, steadyLine)
		took = append(took, (<-arrived).Sub(begin))
	}
	w.Write(logs.Stdout, time.Now(), []byte("q"))
	<-arrived
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	must(b, errors.Join(r.Close(), w.Close(), d.Close()))
}
