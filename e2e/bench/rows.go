package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/client"
)

const (
	// turns is how often each side makes something that takes the engine a while.
	turns = 15
	// small is an image whose containers start as fast as the engine can start one.
	small = "agbox-test/busybox:latest"
	// database is that of a service with a check.
	database = "agbox-test/redis:latest"
)

// line is a row of the report: what both sides took for the same work. Without theirs there is nothing to
// compare with, and their has what that is.
type line struct {
	what, their  string
	theirs, ours figures
}

// report has what the benchmarks of parts have measured.
type report struct {
	lines []line
	rests []resting
	plots []plot
}

// resting is what sandboxes cost in which a command sleeps: how much of a core and of its own memory the daemon
// takes, and how much memory the machine has less for each, of all processes.
type resting struct {
	sandboxes int
	cpu       float64
	memory    int64
	each      float64
}

// part measures some lines.
type part func(ctx context.Context, r *report) error

// alone prints the lines of one part.
func (p part) alone(ctx context.Context) error { return p(ctx, new(report)) }

// parts are in the order of the report.
var parts = []part{benchStart, benchExecLines, benchCreate, benchPool, benchFollow, benchScale, benchFiles}

// benchAll measures what people wait for beside the engine, and writes BENCHMARKS.md.
func benchAll(ctx context.Context) error {
	r := new(report)
	for _, measure := range parts {
		if err := measure(ctx, r); err != nil {
			return err
		}
	}
	return r.write(ctx)
}

// add keeps a line and prints it.
func (r *report) add(l line) {
	r.lines = append(r.lines, l)
	fmt.Printf("%s, %d times\n", l.what, len(l.ours))
	if len(l.theirs) > 0 {
		fmt.Printf("  %-44s %s\n", l.their, l.theirs)
	}
	fmt.Printf("  %-44s %s\n", "agbox", l.ours)
	if len(l.theirs) > 0 {
		fmt.Printf("  ratio of medians   %.2fx\n", l.ratio())
	}
}

// ratio is how many times faster agbox is.
func (l line) ratio() float64 { return float64(l.theirs.at(0.5)) / float64(l.ours.at(0.5)) }

// compare lets both sides work, in five turns each.
func (r *report) compare(what, their string, p pair, rounds int) error {
	theirs, ours, err := p.measure(their, rounds, max(1, rounds/5))
	if err == nil {
		r.add(line{what: what, their: their, theirs: theirs, ours: ours})
	}
	return err
}

// command returns work that runs a program.
func command(ctx context.Context, name string, args ...string) func() error {
	return func() error {
		var failed bytes.Buffer
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stderr = &failed
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, failed.String())
		}
		return nil
	}
}

func agboxCommand(ctx context.Context, args ...string) func() error {
	return command(ctx, filepath.Join("bin", "agbox"), args...)
}

// inOrder returns the works as one.
func inOrder(works ...func() error) func() error {
	return func() error {
		for _, work := range works {
			if err := work(); err != nil {
				return err
			}
		}
		return nil
	}
}

// benchStart measures the start of the program.
func benchStart(ctx context.Context, r *report) error {
	return r.compare("start of the program: agbox version", "/bin/true", pair{theirs: command(ctx, "/bin/true"), ours: agboxCommand(ctx, "version")}, 100)
}

// benchExecLines measures commands in a sandbox.
func benchExecLines(ctx context.Context, r *report) error {
	return withSandbox(ctx, func(c *client.Client, box string) error {
		engine, err := newEngine()
		if err != nil {
			return err
		}
		defer engine.Close()
		api, processes := execPairs(ctx, c, engine, box)
		return errors.Join(
			r.compare("a command (true) in a sandbox, over the API", "docker exec over the API", api, rounds),
			r.compare("the same as a program: agbox exec", "docker exec", processes, rounds/2),
		)
	})
}

// dockerBox is what an engine alone makes: a network and a container in it, and for a stack a database whose
// check succeeds first.
type dockerBox struct{ name string }

func (d dockerBox) up(ctx context.Context, stack bool) func() error {
	works := []func() error{command(ctx, "docker", "network", "create", d.name)}
	if stack {
		works = append(works,
			command(ctx, "docker", "run", "-d", "--name", d.name+"-db", "--network", d.name, "--network-alias", "db",
				"--health-cmd", "redis-cli ping", "--health-interval", "1s", "--health-retries", "50", database),
			func() error { return d.healthy(ctx) })
	}
	return inOrder(append(works, command(ctx, "docker", "run", "-d", "--init", "--name", d.name, "--network", d.name, small, "sleep", "1000000"))...)
}

// healthy waits for the check of the database, as a script would.
func (d dockerBox) healthy(ctx context.Context) error {
	for {
		out, err := exec.CommandContext(ctx, "docker", "inspect", "-f", "{{.State.Health.Status}}", d.name+"-db").Output()
		if err != nil || strings.TrimSpace(string(out)) == "healthy" {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (d dockerBox) down(ctx context.Context, stack bool) func() error {
	names := []string{"rm", "-f", d.name}
	if stack {
		names = append(names, d.name+"-db")
	}
	return func() error {
		return errors.Join(command(ctx, "docker", names...)(), command(ctx, "docker", "network", "rm", d.name)())
	}
}

// clear removes what a turn that failed or was interrupted has left.
func (d dockerBox) clear() { _ = d.down(context.Background(), true)() }

// benchCreate measures the making and the removal of sandboxes, one and eight at a time.
func benchCreate(ctx context.Context, r *report) error {
	return withInstall(func(c *client.Client, _ func(...string) error) (err error) {
		made := line{what: "agbox create, until it is READY", their: "docker network create, docker run"}
		removed := line{what: "agbox rm, until the prompt is back", their: "docker rm -f, docker network rm"}
		eight := line{what: "eight at a time", their: "the same, one after the other"}
		box, boxes := dockerBox{"agbench"}, make([]dockerBox, 8)
		for i := range boxes {
			boxes[i].name = fmt.Sprint("agbench", i)
		}
		all := func(do func(i int) error) func() error {
			return func() error { return each(len(boxes), len(boxes), do) }
		}
		serially := func(do func(i int) error) func() error { return func() error { return each(1, len(boxes), do) } }
		defer box.clear()
		for _, b := range boxes {
			defer b.clear()
		}
		for range turns {
			err := errors.Join(
				made.theirs.time(box.up(ctx, false)), removed.theirs.time(box.down(ctx, false)),
				made.ours.time(agboxCommand(ctx, "create", "demo", "--image", small)), removed.ours.time(agboxCommand(ctx, "rm", "-f", "demo")),
				settled(ctx, c),
			)
			if err != nil {
				return err
			}
		}
		for range turns / 3 {
			err := errors.Join(
				eight.theirs.time(serially(func(i int) error { return boxes[i].up(ctx, false)() })),
				serially(func(i int) error { return boxes[i].down(ctx, false)() })(),
				eight.ours.time(all(func(i int) error { return agboxCommand(ctx, "create", boxes[i].name, "--image", small)() })),
				all(func(i int) error { return agboxCommand(ctx, "rm", "-f", boxes[i].name)() })(),
				settled(ctx, c),
			)
			if err != nil {
				return err
			}
		}
		r.add(made)
		r.add(eight)
		r.add(removed)
		return nil
	})
}

// settled waits until nothing is being removed.
func settled(ctx context.Context, c *client.Client) error {
	boxes, err := c.ListSandboxes(ctx, client.ListOptions{})
	for _, b := range boxes {
		err = errors.Join(err, c.WaitDeleted(ctx, b.GetSandboxId()))
	}
	return err
}

// stackFile describes a sandbox with a database that is ready when its check succeeds.
const stackFile = `image: ` + small + `
services:
  - {name: db, image: ` + database + `, healthcheck: {test: [CMD, redis-cli, ping], interval: 1s, retries: 50}}
`

// benchPool measures what a pool hands out.
func benchPool(ctx context.Context, r *report) error {
	return withInstall(func(c *client.Client, agbox func(...string) error) (err error) {
		file := filepath.Join(os.Getenv("AGBOX_HOME"), "stack.yaml")
		if err := os.WriteFile(file, []byte(stackFile), 0o600); err != nil {
			return err
		}
		box := dockerBox{"agbench"}
		defer box.clear()
		for _, kind := range []struct {
			what, their string
			stack       bool
			args        []string
			turns       int
		}{
			{"agbox create from a pool", "docker network create, docker run", false, []string{"--image", small}, 2 * turns},
			{"the same with a database that is healthy", "the same with docker run of the database first", true, []string{"-f", file}, turns},
		} {
			if err := agbox(append([]string{"pool", "set", "stock", "--size", "2"}, kind.args...)...); err != nil {
				return err
			}
			l := line{what: kind.what, their: kind.their}
			for range kind.turns {
				err := errors.Join(
					stocked(ctx, c), l.theirs.time(box.up(ctx, kind.stack)), box.down(ctx, kind.stack)(),
					stocked(ctx, c), l.ours.time(agboxCommand(ctx, append([]string{"create", "demo"}, kind.args...)...)),
					agbox("rm", "-f", "demo"), settled(ctx, c),
				)
				if err != nil {
					return err
				}
			}
			if err := errors.Join(hits(ctx, c, kind.turns), agbox("pool", "rm", "stock")); err != nil {
				return err
			}
			r.add(l)
		}
		return nil
	})
}

// stocked waits until the pool has all that it keeps.
func stocked(ctx context.Context, c *client.Client) error {
	for {
		pools, err := c.ListPools(ctx)
		if err != nil || pools[0].GetReady() == pools[0].GetSize() {
			time.Sleep(100 * time.Millisecond) // the engine ends what it does about them
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// hits fails unless each request got a sandbox of the pool.
func hits(ctx context.Context, c *client.Client, want int) error {
	pools, err := c.ListPools(ctx)
	if err == nil && (pools[0].GetHits() != uint64(want) || pools[0].GetMisses() != 0) {
		err = fmt.Errorf("of %d requests the pool served %d and missed %d", want, pools[0].GetHits(), pools[0].GetMisses())
	}
	return err
}

// benchFiles measures workspaces of several sizes.
func benchFiles(ctx context.Context, r *report) error {
	work, err := os.MkdirTemp("/var/tmp", "agbench-files")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	p := plot{file: "workspace", title: "A sandbox with a workspace", x: "files", y: "seconds"}
	err = withInstall(func(c *client.Client, agbox func(...string) error) (err error) {
		for _, size := range []int{100, 1000, smallFiles, 5 * smallFiles} {
			source := filepath.Join(work, fmt.Sprint(size))
			if err := makeProject(source, size); err != nil {
				return err
			}
			l := line{what: fmt.Sprintf("agbox create --workspace, %d files", size), their: "docker network create, docker run, tar | docker exec tar"}
			var tar figures
			for i := range 4 {
				// Nothing is removed in between: ext4 passes over what was just removed, for half a minute.
				name := fmt.Sprintf("agbench-%d-%d", size, i)
				box, target := dockerBox{name}, filepath.Join(work, name)
				theirs := inOrder(box.up(ctx, false), command(ctx, "sh", "-c", `tar -C "$1" -cf - . | docker exec -i "$2" tar -C /tmp -xf -`, "sh", source, name))
				defer func() { err = errors.Join(err, box.down(context.WithoutCancel(ctx), false)()) }()
				var first, second, plain figures
				unix.Sync()
				err := first.time(theirs)
				unix.Sync()
				err = errors.Join(err, second.time(agboxCommand(ctx, "create", name, "--image", small, "--workspace", source)))
				unix.Sync()
				err = errors.Join(err, os.Mkdir(target, 0o700),
					plain.time(command(ctx, "sh", "-c", `tar -C "$1" -cf - . | tar -C "$2" -xf -`, "sh", source, target)))
				if err != nil {
					return err
				}
				if i > 0 { // the first one reads from the disk
					l.theirs, l.ours, tar = append(l.theirs, first...), append(l.ours, second...), append(tar, plain...)
				}
			}
			r.add(l)
			fmt.Printf("  %-44s %s\n", "tar | tar on this disk", tar)
			for name, f := range map[string]figures{"agbox create --workspace": l.ours, "docker run, tar | docker exec tar": l.theirs, "tar | tar": tar} {
				p.add(name, float64(size), f.at(0.5).Seconds())
			}
		}
		return nil
	})
	r.plots = append(r.plots, p)
	return err
}

// benchFollow measures how fast a long output reaches its reader. agbox keeps it, and the engine does not.
func benchFollow(ctx context.Context, r *report) error {
	return withSandboxOf(ctx, logImage, func(c *client.Client, box string) error {
		engine, err := newEngine()
		if err != nil {
			return err
		}
		defer engine.Close()
		b := logBench{c: c, box: box, engine: engine}
		return r.compare(fmt.Sprintf("%d MiB of output to a reader, with a log", logBytes>>20), "docker exec over the API, without a log", pair{
			theirs: func() error { return b.dockerBytes(ctx) },
			ours: func() error {
				_, err := b.run(ctx)
				return err
			},
		}, 5)
	})
}

// benchScale measures work beside more and more sandboxes, and the time until all are served after SIGKILL.
func benchScale(ctx context.Context, r *report) error {
	p := plot{file: "scale", title: "Work beside sandboxes that run commands", x: "sandboxes", y: "milliseconds"}
	err := withInstall(func(c *client.Client, agbox func(...string) error) (err error) {
		jobs := make(map[string]string)
		took := make(map[int]figures)
		empty, err := available()
		for _, number := range []int{10, 50, 100, 200, 500} {
			more, failed := fill(ctx, c, number-len(jobs))
			maps.Copy(jobs, more)
			if err = errors.Join(err, failed); err != nil {
				return err
			}
			if took[number], err = p.measureBeside(ctx, c, jobs); err != nil {
				return err
			}
			if number < 200 {
				continue
			}
			r.add(line{what: fmt.Sprintf("a command in a sandbox beside %d others", number), their: "agbox beside 10 others", theirs: took[10], ours: took[number]})
			served := line{what: fmt.Sprintf("%d sandboxes with running commands: SIGKILL of the daemon until each has run a new one", number)}
			for range recoveryRounds {
				took, err := recoverOnce(ctx, c, agbox, jobs)
				if err != nil {
					return err
				}
				served.ours = append(served.ours, took.served)
			}
			r.add(served)
			if err := r.rest(ctx, c, number, empty); err != nil { // of a daemon that has just been started, each time
				return err
			}
		}
		return nil
	})
	r.plots = append(r.plots, p)
	return err
}

// measureBeside measures work beside sandboxes with these jobs, and returns what a command took.
func (p *plot) measureBeside(ctx context.Context, c *client.Client, jobs map[string]string) (execs figures, err error) {
	some := ""
	for some = range jobs {
		break
	}
	var looks, made figures
	for range rounds {
		err = errors.Join(err, execs.time(func() error { return agboxExec(ctx, c, some) }), looks.time(func() error {
			_, err := c.GetSandbox(ctx, some)
			return err
		}))
	}
	for range turns {
		err = errors.Join(err, made.time(func() error { return makeAndRemove(ctx, c) }))
	}
	for name, f := range map[string]figures{"exec of true": execs, "inspect": looks, "create and rm": made} {
		p.add(name, float64(len(jobs)), ms(f.at(0.5)))
	}
	return execs, err
}

// rest measures what so many sandboxes cost; empty is the memory that was available without any.
func (r *report) rest(ctx context.Context, c *client.Client, sandboxes int, empty float64) error {
	pong, err := c.Ping(ctx)
	if err != nil {
		return err
	}
	found := resting{sandboxes: sandboxes}
	if found.cpu, found.memory, err = idle(ctx, filepath.Join("/proc", fmt.Sprint(pong.GetPid()))); err != nil {
		return err
	}
	now, err := available()
	if err != nil {
		return err
	}
	found.each = (empty - now) / float64(sandboxes)
	r.rests = append(r.rests, found)
	fmt.Println(found)
	return nil
}

func (f resting) String() string {
	return fmt.Sprintf("beside %d sandboxes with running commands the daemon takes %.2f %% of a core and %.0f MB at rest; one of them takes %.1f MB of the machine",
		f.sandboxes, f.cpu*100, float64(f.memory)/1e6, f.each/1e6)
}

// available is the memory that the machine has for more, in bytes.
func available() (float64, error) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for text := range strings.Lines(string(info)) {
		if f := strings.Fields(text); len(f) > 1 && f[0] == "MemAvailable:" {
			kib, err := strconv.ParseFloat(f[1], 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("/proc/meminfo does not say how much memory is available")
}

func makeAndRemove(ctx context.Context, c *client.Client) error {
	sb, err := c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: small}})
	if err != nil {
		return err
	}
	if _, err := c.WaitReady(ctx, sb.GetSandboxId()); err != nil {
		return err
	}
	if err := c.DeleteSandbox(ctx, sb.GetSandboxId()); err != nil {
		return err
	}
	return c.WaitDeleted(ctx, sb.GetSandboxId())
}
