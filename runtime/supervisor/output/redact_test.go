package output

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
)

// BenchmarkRedacted moves the same output into logs with and without values to replace, in
// turn, and reports the ratio of their processor times. It should stay below 1.05.
func BenchmarkRedacted(b *testing.B) {
	c := New(freely)
	c.Start()
	b.Cleanup(c.Stop)
	line := []byte("ok  \tgithub.com/agbox/agbox/runtime/supervisor\t12.345s\tcoverage: 81.0% of statements\n")
	for _, output := range []struct {
		name  string
		write int
	}{{"lines", len(line)}, {"blocks", 64 << 10}} {
		for name, value := range map[string]string{
			"key": "sk-ant-" + strings.Repeat("4fQx81Zr", 12), "token": "ghp_" + strings.Repeat("4fQx81", 6), "password": "hunter-2",
		} {
			b.Run(output.name+"/"+name, func(b *testing.B) {
				p := bytes.Repeat(line, output.write/len(line))
				var took [2]time.Duration
				for b.Loop() {
					for i, values := range [][]string{nil, {value}} {
						took[i] += move(b, c, p, logs.NewRedactor(values))
					}
				}
				b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
			})
		}
	}
}

// move moves output of 8 MiB, written in pieces, and returns the processor time of all.
func move(b *testing.B, c *Collector, p []byte, r *logs.Redactor) time.Duration {
	d, err := logs.OpenDir(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	w, err := d.Create("e", logs.WriterOptions{Owner: logs.KeepOwner, Redactor: r})
	if err != nil {
		b.Fatal(err)
	}
	before := used(b)
	out, err := c.Pipes(w)
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		defer out.Started()
		for range 8 << 20 / len(p) {
			if _, err := out.Stdout.Write(p); err != nil {
				b.Error(err)
			}
		}
	}()
	out.Run()
	took := used(b) - before
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return took
}

func used(b *testing.B) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now); err != nil {
		b.Fatal(err)
	}
	return time.Duration(now.Nano())
}
