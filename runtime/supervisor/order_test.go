package supervisor_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// asWriter in the environment makes the test binary a program that writes numbered
// messages to both outputs, from one thread and as fast as it can: "PATTERN COUNT".
const asWriter = "AGBOX_TEST_AS_WRITER"

func init() {
	if what := os.Getenv(asWriter); what != "" {
		runtime.LockOSThread()
		var pattern string
		var count int
		_, _ = fmt.Sscan(what, &pattern, &count)
		writeNumbered(pattern, count)
		os.Exit(0)
	}
}

// header is the length of the number and length before a message.
const header = len("00000000 000000 ")

// writeNumbered writes count messages. In the pattern "alternate" they are short and
// alternate between the streams. In "random", run lengths and message lengths are random,
// up to almost a page. "nonblock" is "random" with non-blocking outputs, as event loops
// use. "interrupted" is "random" under constant signals, as the runtimes of some
// languages send them to their own threads. "big" is "random" with writes of many pages,
// some of them full pages.
func writeNumbered(pattern string, count int) {
	chance := rand.New(rand.NewPCG(uint64(count), 7))
	if pattern == "nonblock" {
		for fd := 1; fd <= 2; fd++ {
			_ = syscall.SetNonblock(fd, true)
		}
	}
	if pattern == "interrupted" { // the Go runtime handles the signals and does nothing
		every := unix.Itimerval{Interval: unix.Timeval{Usec: 1000}, Value: unix.Timeval{Usec: 1000}}
		if _, err := unix.Setitimer(unix.ItimerReal, every); err != nil {
			os.Exit(1)
		}
	}
	buf := []byte(strings.Repeat("x", 300_000))
	fd, run := 1, 1
	for i := range count {
		length := header + 1
		if pattern == "big" {
			length = max(4096*chance.IntN(70)+chance.IntN(2)*chance.IntN(4000), header)
		} else if pattern != "alternate" {
			switch chance.IntN(10) {
			case 0:
				length = 4095
			case 1, 2:
				length += chance.IntN(4096 - length)
			default:
				length += chance.IntN(60)
			}
		}
		copy(buf, fmt.Sprintf("%08d %06d ", i, length))
		for rest := buf[:length]; len(rest) > 0; {
			n, err := syscall.Write(fd, rest)
			if err == syscall.EAGAIN {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
			} else if err != nil && err != syscall.EINTR {
				os.Exit(1)
			}
			rest = rest[max(n, 0):]
		}
		if run--; run == 0 {
			fd, run = 3-fd, 1
			if pattern != "alternate" {
				run += chance.IntN(5) * chance.IntN(5)
			}
		}
	}
}

// writer returns a request that runs writeNumbered.
func writer(t testing.TB, id, pattern string, count int) *guestv1.StartRequest {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := request(id, self)
	r.Env = []string{asWriter + "=" + pattern + " " + strconv.Itoa(count)}
	return r
}

// disorder returns how many messages of an exec do not follow the previous one in the
// order of the index, and how many messages there are.
func (b *box) disorder(id string) (wrong, count int) {
	b.t.Helper()
	streams := [2]string{b.file("logs/" + logs.StdoutName(id)), b.file("logs/" + logs.StderrName(id))}
	index := b.file("logs/" + logs.IndexName(id))
	want := 0
	var inside [2]uint64 // bytes of a message that began in an earlier record
	for ; len(index) >= 32; index = index[32:] {
		stream, offset, length := index[20]-1, binary.BigEndian.Uint64([]byte(index[8:16])), binary.BigEndian.Uint32([]byte(index[16:20]))
		at, end := offset+inside[stream], offset+uint64(length)
		for at < end {
			message := streams[stream][at:]
			number, err1 := strconv.Atoi(message[:8])
			size, err2 := strconv.Atoi(message[9:15])
			if err1 != nil || err2 != nil {
				b.t.Fatalf("%s: a message is broken: %q", id, message[:header])
			}
			if number != want {
				wrong++
			}
			want = number + 1
			count++
			at += uint64(size)
		}
		inside[stream] = at - end
	}
	return wrong, count
}

// writeAtOnce runs writers concurrently and checks the order of each.
func (b *box) writeAtOnce(execs int, name, pattern string, count int) {
	b.t.Helper()
	records, c := b.ends(), b.dial()
	for i := range execs {
		b.start(c, writer(b.t, name+strconv.Itoa(i), pattern, count))
	}
	for range execs {
		if r := b.nextWhileLogsGrow(records); r.GetExitCode() != 0 {
			b.t.Fatalf("the writer ended with %v", r)
		}
	}
	for i := range execs {
		if wrong, got := b.disorder(name + strconv.Itoa(i)); wrong > 0 || got != count {
			b.t.Errorf("%s: %d of %d messages are there, %d out of order", name, got, count, wrong)
		}
	}
}

// runWhileLogsGrow runs an exec to its end, however long that takes.
func (b *box) runWhileLogsGrow(req *guestv1.StartRequest) *guestv1.ExecRecord {
	b.t.Helper()
	b.start(b.dial(), req)
	return b.nextWhileLogsGrow(b.ends(req.GetExecId()))
}

// nextWhileLogsGrow returns the next record of a watch, however long the machine needs
// for the output before it.
func (b *box) nextWhileLogsGrow(records <-chan *guestv1.ExecRecord) *guestv1.ExecRecord {
	b.t.Helper()
	for before := int64(-1); ; {
		select {
		case r, ok := <-records:
			if !ok {
				b.t.Fatal("the watch ended")
			}
			return r
		case <-time.After(limit):
		}
		entries, err := os.ReadDir(filepath.Join(b.dir, "logs"))
		b.must(err)
		size := int64(0)
		for _, entry := range entries {
			info, err := entry.Info()
			b.must(err)
			size += info.Size()
		}
		if size == before {
			b.t.Fatal("no exec ended, and nothing more was written")
		}
		before = size
	}
}

// busy keeps all processors busy until the test ends.
func busy(t testing.TB) {
	for range runtime.NumCPU() {
		p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "while :; do :; done"}, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Kill(); _, _ = p.Wait() })
	}
}

// holdBack stops the supervisor repeatedly, each time long enough for pipes to fill, and
// lets it run for the given time in between, until the test ends.
func (b *box) holdBack(run time.Duration) {
	done := make(chan struct{})
	var holding sync.WaitGroup
	holding.Go(func() {
		for {
			b.signal(syscall.SIGSTOP)
			<-time.After(2 * time.Millisecond)
			b.signal(syscall.SIGCONT)
			select {
			case <-time.After(run):
			case <-done:
				return
			}
		}
	})
	b.t.Cleanup(func() { close(done); holding.Wait() })
}

func TestOutputIsInTheOrderInWhichItWasWritten(t *testing.T) {
	for name, prepare := range map[string]func(*box){
		"quiet":         func(*box) {},
		"busy":          func(b *box) { busy(b.t) },
		"held back":     func(b *box) { b.holdBack(2 * time.Millisecond) },
		"held and busy": func(b *box) { busy(b.t); b.holdBack(20 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			prepare(b)
			for i := range 3 {
				b.writeAtOnce(1, fmt.Sprint("alternate", i), "alternate", 10_000)
				b.writeAtOnce(1, fmt.Sprint("random", i), "random", 5_000)
			}
			b.writeAtOnce(3, "three", "random", 3_000)
			b.writeAtOnce(1, "nonblock", "nonblock", 5_000)
		})
	}
}

// Whoever writes without end waits for room again and again, and may be interrupted
// then. There is no promise of order, but all of it is there, and little is not where it
// was written.
func TestAFloodIsWholeAndNearlyInOrder(t *testing.T) {
	for pattern, count := range map[string]int{"alternate": 1_000_000, "interrupted": 50_000} {
		t.Run(pattern, func(t *testing.T) {
			b := newBox(t)
			r := b.runWhileLogsGrow(writer(t, "e", pattern, count))
			if wrong, got := b.disorder("e"); got != count || wrong > count/100 || r.GetExitCode() != 0 {
				t.Errorf("%d of %d messages are there, %d out of order, %v", got, count, wrong, r)
			}
		})
	}
}

func TestAShellsOutputIsInTheOrderInWhichItWasWritten(t *testing.T) {
	b := newBox(t)
	r := b.run(sh("e", `i=0; while [ $i -lt 5000 ]; do printf '%08d 000017 \n' $((2*i)); printf '%08d 000017 \n' $((2*i+1)) >&2; i=$((i+1)); done`))
	if wrong, count := b.disorder("e"); wrong > 0 || count != 10_000 || r.GetExitCode() != 0 {
		t.Errorf("%d lines, %d out of order, %v", count, wrong, r)
	}
}

// A writer that fills a pipe to the last packet sends no further signal, like a writer
// that is about to find the pipe full.
func TestAPipeIsReadWhoseWriterFillsItAndStops(t *testing.T) {
	b := newBox(t)
	begin, done := filepath.Join(b.dir, "begin"), filepath.Join(b.dir, "done")
	b.start(b.dial(), sh("e", fmt.Sprintf(
		`until [ -e %s ]; do sleep 0.01; done; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo; done; : >%s; exec sleep 1000`, begin, done)))
	b.signal(syscall.SIGSTOP)
	b.must(os.WriteFile(begin, nil, 0o600))
	eventually(t, "the pipe is filled", func() bool { _, err := os.Stat(done); return err == nil })
	b.signal(syscall.SIGCONT)
	eventually(t, "its lines are in the log", func() bool { return b.stdout("e") == strings.Repeat("\n", 16) })
}

// Writes of a page or more have no guaranteed order, but all of them must arrive.
func TestWritesOfManyPagesAreWhole(t *testing.T) {
	b := newBox(t)
	r := b.runWhileLogsGrow(writer(t, "e", "big", 2000))
	if _, count := b.disorder("e"); count != 2000 || r.GetExitCode() != 0 {
		t.Errorf("%d messages, %v", count, r)
	}
}

func TestNoByteIsLostWhenTheKernelCanQueueNoSignals(t *testing.T) {
	b := newBox(t)
	b.must(unix.Prlimit(b.cmd.Process.Pid, unix.RLIMIT_SIGPENDING, &unix.Rlimit{}, nil))
	for _, pattern := range []string{"alternate", "big"} {
		r := b.runWhileLogsGrow(writer(t, pattern, pattern, 2000))
		if _, count := b.disorder(pattern); count != 2000 || r.GetExitCode() != 0 {
			t.Errorf("%d messages, %v", count, r)
		}
	}
}

// BenchmarkWrite measures the time of one short write of a program, alternating between
// both outputs, and the processor time that the program and the supervisor use for it.
func BenchmarkWrite(b *testing.B) {
	const count = 200_000
	box := newBox(b)
	c, records := box.dial(), box.ends()
	i, writing, before := 0, uint64(0), box.processorTime()
	for b.Loop() {
		i++
		box.start(c, writer(b, fmt.Sprint("e", i), "alternate", count))
		r := next(b, records)
		if r.GetExitCode() != 0 {
			b.Fatal(r)
		}
		writing += r.GetUserUs() + r.GetSystemUs()
	}
	writes := float64(i * count)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/writes, "ns/write")
	b.ReportMetric(float64(writing)*1e3/writes, "writer-cpu-ns/write")
	b.ReportMetric(float64((box.processorTime()-before).Nanoseconds())/writes, "supervisor-cpu-ns/write")
}

// processorTime returns the processor time of the supervisor without its execs.
func (b *box) processorTime() time.Duration {
	_, fields, _ := strings.Cut(mustRead(b.t, fmt.Sprintf("/proc/%d/stat", b.cmd.Process.Pid)), ") ")
	var ticks time.Duration
	for _, field := range strings.Fields(fields)[11:13] {
		n, err := strconv.Atoi(field)
		b.must(err)
		ticks += time.Duration(n)
	}
	return ticks * time.Second / 100
}
