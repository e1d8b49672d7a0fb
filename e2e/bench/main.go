// Command bench measures agbox and the engine itself in the same run, and prints medians
// and their ratio. Absolute figures depend on the machine and its load, the ratio much
// less.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// benchmarks by name; each prints its own figures.
var benchmarks = map[string]func(context.Context) error{
	"agents":   benchAgents,
	"all":      benchAll,
	"base":     benchBase,
	"figures":  benchFigures,
	"copy":     benchCopy,
	"create":   part(benchCreate).alone,
	"exec":     benchExec,
	"files":    part(benchFiles).alone,
	"follow":   part(benchFollow).alone,
	"logs":     benchLogs,
	"many":     benchMany,
	"pool":     part(benchPool).alone,
	"reads":    benchReads,
	"recovery": benchRecovery,
	"scale":    part(benchScale).alone,
	"services": benchServices,
	"start":    part(benchStart).alone,
}

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 2 || benchmarks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: bench", strings.Join(slices.Sorted(maps.Keys(benchmarks)), "|"))
		return 2
	}
	if err := benchmarks[os.Args[1]](ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// figures are the times of one kind of work.
type figures []time.Duration

func (f *figures) time(work func() error) error {
	begin := time.Now()
	err := work()
	*f = append(*f, time.Since(begin))
	return err
}

// at returns a quantile of the sorted figures: 0.5 is the median.
func (f figures) at(part float64) time.Duration {
	sorted := slices.Sorted(slices.Values(f))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

func (f figures) String() string {
	return fmt.Sprintf("median %7.2f ms   p10 %7.2f   p90 %7.2f", ms(f.at(0.5)), ms(f.at(0.1)), ms(f.at(0.9)))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// block is how many times one side runs before the other side's turn. With single turns,
// each side would pay for the clean-up of the other.
const block = 25

// pair is the same work, done by the engine alone and by agbox.
type pair struct{ theirs, ours func() error }

// run does both, in alternating blocks, and prints the results together.
func (p pair) run(what, baseline string, rounds int) error {
	return p.inTurns(what, baseline, rounds, block)
}

// inTurns is run with turns of so many.
func (p pair) inTurns(what, baseline string, rounds, turn int) error {
	theirs, ours, err := p.measure(baseline, rounds, turn)
	if err != nil {
		return err
	}
	fmt.Printf("%s, %d times each, in turns of %d\n", what, len(ours), min(turn, rounds))
	fmt.Printf("  %-18s %s\n  %-18s %s\n", baseline, theirs, "agbox", ours)
	fmt.Printf("  ratio of medians   %.1fx\n", float64(theirs.at(0.5))/float64(ours.at(0.5)))
	return nil
}

// measure does both, in turns of so many.
func (p pair) measure(baseline string, rounds, turn int) (theirs, ours figures, err error) {
	for range max(1, rounds/turn) {
		for _, side := range []struct {
			figures *figures
			work    func() error
			name    string
		}{{&theirs, p.theirs, baseline}, {&ours, p.ours, "agbox"}} {
			for range min(turn, rounds) {
				if err := side.figures.time(side.work); err != nil {
					return nil, nil, fmt.Errorf("%s: %w", side.name, err)
				}
			}
		}
	}
	return theirs, ours, nil
}
