package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// write writes BENCHMARKS.md and its pictures.
func (r *report) write(ctx context.Context) error {
	machine, err := describe(ctx)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\n`make bench` has measured this on %s.\n\n", time.Now().Format(time.DateOnly))
	fmt.Fprintf(&b, "%s\n\n", machine)
	b.WriteString("Both sides take turns. A time is the median, with the 10th and the 90th percentile in brackets. Times depend on the\n")
	b.WriteString("machine and on what else it does, ratios much less: the ratio says how many times faster agbox is.\n\n")
	b.WriteString("| | compared with | its time, ms | agbox, ms | ratio |\n|---|---|---|---|---|\n")
	for _, l := range r.lines {
		their, theirs, ratio := "", "", ""
		if len(l.theirs) > 0 {
			their, theirs, ratio = l.their, l.theirs.cell(), fmt.Sprintf("%.2f", l.ratio())
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", l.what, escaped(their), theirs, l.ours.cell(), ratio)
	}
	b.WriteString("\n## At rest\n\nOf the daemon, over a minute; its memory without the pages of files. What a sandbox takes is its part of the memory that the\n")
	b.WriteString("machine has less with all of them, of all processes.\n\n")
	b.WriteString("| sandboxes with a command that sleeps | of a core, % | memory of the daemon, MB | one sandbox, MB |\n|---|---|---|---|\n")
	for _, f := range r.rests {
		fmt.Fprintf(&b, "| %d | %.2f | %.0f | %.1f |\n", f.sandboxes, f.cpu*100, float64(f.memory)/1e6, f.each/1e6)
	}
	for _, p := range r.plots {
		picture := filepath.Join("docs", "bench-"+p.file+".svg")
		if err := os.WriteFile(picture, []byte(p.svg()), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n![%s](%s)\n", p.title, filepath.ToSlash(picture))
	}
	return os.WriteFile("BENCHMARKS.md", []byte(b.String()), 0o644)
}

// escaped returns text for a cell of a table.
func escaped(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func (f figures) cell() string {
	return fmt.Sprintf("%.1f (%.1f to %.1f)", ms(f.at(0.5)), ms(f.at(0.1)), ms(f.at(0.9)))
}

// describe says what was measured, and on what.
func describe(ctx context.Context) (string, error) {
	engine, err := newEngine()
	if err != nil {
		return "", err
	}
	defer engine.Close()
	info, err := engine.Info(ctx)
	if err != nil {
		return "", err
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return "", err
	}
	hash, sync, err := pace()
	return fmt.Sprintf("%d cores, %d GiB, %s, Linux %s; Docker %s, storage driver %s.\n"+
		"Its pace at the end of the measurements: %s to hash 64 MiB with SHA-256, %s to write 4 KiB to the disk.", info.NCPU, info.MemTotal>>30,
		info.OperatingSystem, unix.ByteSliceToString(kernel.Release[:]), info.ServerVersion, info.Driver, hash, sync), err
}

// pace returns how long a computation and a synchronous write take, as medians: the speed of a machine that
// others share is not always the same.
func pace() (hash, sync time.Duration, err error) {
	dir, err := os.MkdirTemp(".", ".pace")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	var hashes, syncs figures
	data := make([]byte, 64<<20)
	for range 21 {
		err = errors.Join(err, hashes.time(func() error { sha256.Sum256(data); return nil }))
		err = errors.Join(err, syncs.time(func() error {
			_, err := f.WriteAt(data[:4<<10], 0)
			return errors.Join(err, f.Sync())
		}))
	}
	return hashes.at(0.5).Round(time.Millisecond / 10), syncs.at(0.5).Round(time.Millisecond / 100), err
}

// plot is a picture of costs by size. Both axes are logarithmic.
type plot struct {
	file, title, x, y string
	curves            []curve
}

type curve struct {
	name   string
	points []point
}

type point struct{ x, y float64 }

func (p *plot) add(name string, x, y float64) {
	i := slices.IndexFunc(p.curves, func(c curve) bool { return c.name == name })
	if i < 0 {
		i = len(p.curves)
		p.curves = append(p.curves, curve{name: name})
	}
	p.curves[i].points = append(p.curves[i].points, point{x, y})
}

// The size of a picture, and the margins of its area, in pixels.
const (
	width, height           = 720, 360
	left, right, top, below = 70, 220, 40, 50
)

// colours are those of the curves: distinct also for who does not tell red from green.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7"}

// svg draws the plot.
func (p *plot) svg() string {
	slices.SortFunc(p.curves, func(a, b curve) int { return cmp.Compare(a.name, b.name) })
	var xs, ys []float64
	for _, c := range p.curves {
		for _, at := range c.points {
			xs, ys = append(xs, at.x), append(ys, at.y)
		}
	}
	across, up := decades(xs), decades(ys)
	place := func(at point) (x, y float64) {
		return left + across.part(at.x)*(width-left-right), height - below - up.part(at.y)*(height-top-below)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/><text x="%d" y="22" font-size="15">%s</text>`+"\n", left, p.title)
	for _, v := range across.marks() {
		x, _ := place(point{v, up.low})
		fmt.Fprintf(&b, `<path d="M%.1f %d V%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%g</text>`+"\n", x, top, height-below, x, height-below+18, v)
	}
	for _, v := range up.marks() {
		_, y := place(point{across.low, v})
		fmt.Fprintf(&b, `<path d="M%d %.1f H%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, y, width-right, left-6, y+4, v)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%s</text><text x="14" y="%d" transform="rotate(-90 14 %[4]d)" text-anchor="middle">%s</text>`+"\n",
		left+(width-left-right)/2, height-12, p.x, top+(height-top-below)/2, p.y)
	for i, c := range p.curves {
		colour := colours[i%len(colours)]
		var path strings.Builder
		for j, at := range c.points {
			x, y := place(at)
			fmt.Fprintf(&path, "%s%.1f %.1f", map[bool]string{true: "M", false: " L"}[j == 0], x, y)
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x, y, colour)
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path.String(), colour)
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", width-right+12, top+16+18*i, colour, c.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// span is a range of values of an axis that begins and ends at a mark.
type span struct{ low, high float64 }

// decades returns the narrowest span around values, between marks of 1, 2 and 5.
func decades(values []float64) span {
	low, high := slices.Min(values), slices.Max(values)
	s := span{math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))}
	if s.low == s.high {
		s.high *= 10
	}
	all := s.marks()
	for _, v := range all {
		if v <= low {
			s.low = v
		}
		if v >= high {
			s.high = v
			break
		}
	}
	return s
}

// marks returns the labelled values within the span.
func (s span) marks() []float64 {
	var all []float64
	for decade := math.Pow(10, math.Floor(math.Log10(s.low))); decade <= s.high*1.001; decade *= 10 {
		for _, digit := range []float64{1, 2, 5} {
			if v := digit * decade; v >= s.low*0.999 && v <= s.high*1.001 {
				all = append(all, v)
			}
		}
	}
	return all
}

// part returns where in the span a value is, from 0 to 1.
func (s span) part(v float64) float64 {
	return (math.Log(v) - math.Log(s.low)) / (math.Log(s.high) - math.Log(s.low))
}
