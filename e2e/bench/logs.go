package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	docker "github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/runtime"
)

const (
	// logBytes is the length of the log that both sides transfer.
	logBytes = 256 << 20
	// logRounds is how often they transfer it.
	logRounds = 3
	// firstBytes is how many single lines are timed on each side.
	firstBytes = 300
	// restTime is how long followers are idle before the daemon's memory is measured. By
	// then they have closed their files.
	restTime = 3 * time.Second
)

// logImage has a shell with times in microseconds.
const logImage = "agbox-test/debian:latest"

// writeLog writes logBytes of lines as fast as possible. stampLoop writes a line with the
// current time in microseconds every 20 ms.
var (
	writeLog  = []string{"bash", "-c", fmt.Sprintf("yes 'ok 0042 the quick brown fox jumps over the lazy dog and comes back for more' | head -c %d", logBytes)}
	stampLoop = []string{"bash", "-c", fmt.Sprintf("for ((i = 0; i < %d; i++)); do echo ${EPOCHREALTIME/[.,]/}; sleep 0.02; done", firstBytes)}
)

// benchLogs compares following a log through the client package with the two ways of the
// engine: its log of a container's main command, and the output of an exec, which it does
// not store. It also measures the memory of idle followers.
func benchLogs(ctx context.Context) error {
	return withSandboxOf(ctx, logImage, func(c *client.Client, box string) error {
		engine, err := newEngine()
		if err != nil {
			return err
		}
		defer engine.Close()
		b := logBench{c: c, box: box, engine: engine}
		return errors.Join(b.throughput(ctx), b.firstByte(ctx), b.idle(ctx, 1000), b.idle(ctx, 5000))
	})
}

type logBench struct {
	c      *client.Client
	box    string
	engine *docker.Client
}

// throughput transfers the same lines to a reader in each way, in turns.
func (b logBench) throughput(ctx context.Context) error {
	var attached, growing, finished, ourGrowing, ourFinished figures
	for range logRounds {
		var exec string
		err := errors.Join(
			attached.time(func() error { return b.dockerBytes(ctx) }),
			ourGrowing.time(func() (err error) { exec, err = b.run(ctx); return err }),
			ourFinished.time(func() error { return b.count(b.c.FollowLogs(ctx, exec, client.LogOptions{Follow: true})) }),
			b.dockerLogs(ctx, &growing, &finished),
		)
		if err != nil {
			return err
		}
	}
	fmt.Printf("%d MiB of lines to a reader, %d times each, in turns; median\n", logBytes>>20, logRounds)
	rate := func(f figures) float64 { return logBytes / f.at(0.5).Seconds() / 1e6 }
	for _, kind := range []struct {
		when  string
		sides []side
	}{
		{"while they are written", []side{
			{"docker logs -f API", growing}, {"docker exec attach API, no log", attached}, {"agbox", ourGrowing},
		}},
		{"afterwards", []side{{"docker logs API", finished}, {"agbox", ourFinished}}},
	} {
		fmt.Printf("  %s\n", kind.when)
		ours := rate(kind.sides[len(kind.sides)-1].f)
		for _, s := range kind.sides {
			fmt.Printf("    %-32s %7.0f MB/s", s.name, rate(s.f))
			if s.name != "agbox" {
				fmt.Printf("   agbox %.1fx", ours/rate(s.f))
			}
			fmt.Println()
		}
	}
	return nil
}

// side is one of the compared ways.
type side struct {
	name string
	f    figures
}

func (b logBench) run(ctx context.Context) (exec string, err error) {
	exec = client.NewID()
	return exec, b.count(b.c.RunLogs(ctx, &agboxv1.CreateExecRequest{
		SandboxId: b.box, ExecId: exec, Command: writeLog, MaxLogBytes: 2 * logBytes,
	}))
}

// count reads output to its end and checks that it is complete.
func (b logBench) count(items func(func(client.LogItem, error) bool)) error {
	total := 0
	for item, err := range items {
		if err != nil {
			return err
		}
		total += len(item.Data)
	}
	if total != logBytes {
		return fmt.Errorf("agbox gave %d bytes of %d", total, logBytes)
	}
	return nil
}

// attach runs a command in the sandbox with docker.
func (b logBench) attach(ctx context.Context, command []string) (types.HijackedResponse, error) {
	created, err := b.engine.ContainerExecCreate(ctx, runtime.PrimaryName(b.box), container.ExecOptions{Cmd: command, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return types.HijackedResponse{}, err
	}
	return b.engine.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
}

// dockerLogs lets the engine store the log of a container's main command. It reads the
// log while it is written and again when it is complete.
func (b logBench) dockerLogs(ctx context.Context, growing, finished *figures) error {
	made, err := b.engine.ContainerCreate(ctx, &container.Config{Image: logImage, Cmd: writeLog},
		&container.HostConfig{NetworkMode: "none", LogConfig: container.LogConfig{Type: "json-file"}}, nil, nil, "")
	if err != nil {
		return err
	}
	read := func() error {
		stream, err := b.engine.ContainerLogs(ctx, made.ID, container.LogsOptions{ShowStdout: true, ShowStderr: true, Follow: true})
		if err != nil {
			return err
		}
		defer stream.Close()
		return countDocker(stream)
	}
	return errors.Join(
		growing.time(func() error {
			if err := b.engine.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
				return err
			}
			return read()
		}),
		finished.time(read),
		b.engine.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true}),
	)
}

func (b logBench) dockerBytes(ctx context.Context) error {
	stream, err := b.attach(ctx, writeLog)
	if err != nil {
		return err
	}
	defer stream.Close()
	return countDocker(stream.Reader)
}

// countDocker reads output of the engine to its end and checks that it is complete.
func countDocker(stream io.Reader) error {
	total, err := stdcopy.StdCopy(io.Discard, io.Discard, stream)
	if err == nil && total != logBytes {
		err = fmt.Errorf("docker gave %d bytes of %d", total, logBytes)
	}
	return err
}

// firstByte measures the time from the writing of single lines to their arrival.
func (b logBench) firstByte(ctx context.Context) error {
	var theirs, ours figures
	stream, err := b.attach(ctx, stampLoop)
	if err != nil {
		return err
	}
	defer stream.Close()
	lines, err := pipeLines(&theirs, func(w io.Writer) error {
		_, err := stdcopy.StdCopy(w, io.Discard, stream.Reader)
		return err
	})
	if err != nil {
		return err
	}
	_, err = pipeLines(&ours, func(w io.Writer) error {
		_, err := b.c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: b.box, Command: stampLoop}, w, io.Discard)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("a line after a quiet time, from its writing to its reader, %d times each\n", lines)
	for _, side := range []struct {
		name string
		f    figures
	}{{"docker exec attach API", theirs}, {"agbox", ours}} {
		fmt.Printf("  %-34s p50 %6.2f ms   p99 %6.2f ms\n", side.name, ms(side.f.at(0.5)), ms(side.f.at(0.99)))
	}
	return nil
}

// stamps is a writer that records the age of the time in each line.
type stamps struct {
	figures *figures
	held    []byte
	lines   int
}

func (s *stamps) Write(p []byte) (int, error) {
	now := time.Now()
	s.held = append(s.held, p...)
	for {
		line, rest, ok := bytes.Cut(s.held, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		micros, err := strconv.ParseInt(string(line), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("a line is no time: %w", err)
		}
		*s.figures = append(*s.figures, now.Sub(time.UnixMicro(micros)))
		s.lines++
		s.held = rest
	}
}

func pipeLines(f *figures, copyTo func(io.Writer) error) (int, error) {
	s := &stamps{figures: f}
	if err := copyTo(s); err != nil {
		return 0, err
	}
	if s.lines != firstBytes {
		return 0, fmt.Errorf("%d lines came of %d", s.lines, firstBytes)
	}
	return s.lines, nil
}

// idle measures the daemon's memory with this many followers of one quiet exec.
func (b logBench) idle(ctx context.Context, followers int) error {
	pong, err := b.c.Ping(ctx)
	if err != nil {
		return err
	}
	pid := int(pong.GetPid())
	out, err := b.c.CreateExec(ctx, &agboxv1.CreateExecRequest{SandboxId: b.box, Command: []string{"sh", "-c", "echo ready; exec sleep 600"}})
	if err != nil {
		return err
	}
	time.Sleep(restTime)
	before, err := weigh(pid)
	if err != nil {
		return err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	// A connection carries at most 4096 calls.
	const perClient = 1000
	var all, ready sync.WaitGroup
	ready.Add(followers)
	failed := make(chan error, followers)
	for first := 0; first < followers; first += perClient {
		c, err := client.New()
		if err != nil {
			return err
		}
		defer c.Close()
		for range min(perClient, followers-first) {
			all.Go(func() {
				for item, err := range c.FollowLogs(following, out.GetExecId(), client.LogOptions{Follow: true}) {
					if err != nil && following.Err() == nil {
						failed <- err
						ready.Done()
					}
					if len(item.Data) > 0 {
						ready.Done()
					}
				}
			})
		}
	}
	ready.Wait()
	time.Sleep(restTime)
	after, err := weigh(pid)
	stop()
	all.Wait()
	close(failed)
	err = errors.Join(err, <-failed, b.c.CancelExec(ctx, out.GetExecId(), 0))
	fmt.Printf("daemon with %d idle followers of one exec\n", followers)
	fmt.Printf("  memory %.0f MB, before %.0f MB: %.1f KiB each; open files %d, before %d; CPU in a second of rest %v\n",
		float64(after.rss)/1e6, float64(before.rss)/1e6, float64(after.rss-before.rss)/1024/float64(followers), after.files, before.files, after.cpu)
	return err
}

// weight is the resource usage of a process.
type weight struct {
	rss   int64
	files int
	// cpu is its processor time during one second.
	cpu time.Duration
}

func weigh(pid int) (weight, error) {
	var w weight
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return w, err
	}
	w.files = len(files)
	begun, err := ticks(dir)
	if err != nil {
		return w, err
	}
	time.Sleep(time.Second)
	ended, err := ticks(dir)
	if err != nil {
		return w, err
	}
	const tick = 10 * time.Millisecond
	w.cpu = time.Duration(ended-begun) * tick
	status, err := os.Open(filepath.Join(dir, "status"))
	if err != nil {
		return w, err
	}
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if kib, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			w.rss, err = strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			w.rss *= 1024
			return w, err
		}
	}
	return w, fmt.Errorf("process %d does not say how much memory it has", pid)
}

// ticks returns the processor time of a process in clock ticks.
func ticks(dir string) (int64, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return user + system, err
}
