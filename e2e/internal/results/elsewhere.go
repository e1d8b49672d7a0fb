package results

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// end is how a test ended.
type end struct {
	action string // "pass", "fail" or "skip", as of go test -json
	took   time.Duration
}

// Elsewhere runs the tests that the entries name in other folders than the given one, and
// adds a row for each entry that has such tests. It writes the output of failed tests. An
// error means that not all tests could be run. Their rows are not good then.
func (tb *Table) Elsewhere(ctx context.Context, repository string, entries []Entry, folder string, out io.Writer) error {
	all := make(map[Test]bool)
	for _, e := range entries {
		for _, test := range e.Tests {
			if test.Folder != folder {
				all[test] = true
			}
		}
	}
	ends, err := run(ctx, repository, slices.Collect(maps.Keys(all)), out)
	for _, e := range entries {
		tests := slices.DeleteFunc(slices.Clone(e.Tests), func(test Test) bool { return test.Folder == folder })
		if len(tests) > 0 {
			tb.add(tb.rowOf(e, tests, ends))
		}
	}
	return err
}

// rowOf makes the row of an entry from the ends of some of its tests.
func (tb *Table) rowOf(e Entry, tests []Test, ends map[Test]end) *Row {
	r := &Row{table: tb, number: e.Number, times: len(tests), result: tb.Good}
	for _, test := range tests {
		ended := ends[test]
		r.took += ended.took
		if result := resultOf(ended.action); result != "" {
			r.result = result
		}
	}
	r.words = fmt.Sprintf("%s (%d elsewhere)", e.Cells[1], len(tests))
	return r
}

// resultOf returns the result of a test that did not pass, and nothing for one that did.
func resultOf(action string) string {
	switch action {
	case "pass":
		return ""
	case "fail":
		return failed
	case "skip":
		return skipped
	}
	return notEnded
}

func (tb *Table) add(r *Row) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.rows = append(tb.rows, r)
}

// run runs tests, two packages at a time, and returns how they ended.
func run(ctx context.Context, repository string, tests []Test, out io.Writer) (map[Test]end, error) {
	var names, packages []string
	for _, test := range tests {
		names = append(names, test.Name)
		packages = append(packages, "./"+test.Folder)
	}
	slices.Sort(names)
	slices.Sort(packages)
	// The flags are those of the Makefile, so that both share what was compiled.
	args := []string{"test", "-json", "-race", "-count=1", "-vet=off", "-ldflags=-w", "-p=2", "-run", "^(" + strings.Join(slices.Compact(names), "|") + ")$"}
	cmd := exec.CommandContext(ctx, "go", append(args, slices.Compact(packages)...)...)
	cmd.Dir = repository
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, out
	failure := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](failure); failure != nil && !exited {
		return nil, failure
	}
	return ended(&stdout, tests, out)
}

// ended reads the output of go test -json.
func ended(output io.Reader, tests []Test, out io.Writer) (map[Test]end, error) {
	ends := make(map[Test]end)
	said := make(map[string]*strings.Builder)
	for lines := json.NewDecoder(output); ; {
		var line struct {
			Action, Package, Test, Output string
			Elapsed                       float64
		}
		if err := lines.Decode(&line); err == io.EOF {
			return ends, nil
		} else if err != nil {
			return ends, fmt.Errorf("the output of go test cannot be read: %w", err)
		}
		name, _, _ := strings.Cut(line.Test, "/")
		of := line.Package + " " + name
		if said[of] == nil {
			said[of] = new(strings.Builder)
		}
		said[of].WriteString(line.Output)
		if line.Test != name || line.Action != "pass" && line.Action != "fail" && line.Action != "skip" {
			continue
		}
		for _, test := range tests {
			if test.Name == name && strings.HasSuffix(line.Package, "/"+test.Folder) {
				ends[test] = end{line.Action, time.Duration(line.Elapsed * float64(time.Second))}
			}
		}
		if line.Action == "fail" {
			fmt.Fprint(out, said[of])
		}
	}
}
