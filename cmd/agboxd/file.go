package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// fileError lists every problem of the configuration file.
type fileError struct {
	path string
	// problems are sentences; those about a line begin with its number.
	problems []string
}

func (e *fileError) Error() string {
	return fmt.Sprintf("The configuration file %s is not valid; correct it or remove it.\n  %s", e.path, strings.Join(e.problems, "\n  "))
}

// readFile reads the settings that no flag sets from the file, which may be missing. A
// file with any problem is refused as a whole: a daemon with settings that its operator
// does not expect is worse than one that does not start.
func (s *settings) readFile(path string) error {
	raw, err := readAll(path)
	if err != nil || raw == nil {
		return err
	}
	report := new(document.Report)
	if root := document.YAML(path, raw, report); root != nil {
		s.takeAll(root, path, report)
	}
	if len(report.Problems) == 0 {
		return nil
	}
	slices.SortStableFunc(report.Problems, func(a, b *agboxv1.SpecProblem) int { return cmp.Compare(a.GetLine(), b.GetLine()) })
	file := &fileError{path: path}
	for _, p := range report.Problems {
		file.problems = append(file.problems, fmt.Sprintf("Line %d: %s", p.GetLine(), p.GetMessage()))
	}
	return file
}

// takeAll reads every setting of the file and reports the problems.
func (s *settings) takeAll(root *document.Node, path string, report *document.Report) {
	if root.Kind == document.Null {
		return
	}
	if root.Kind != document.Map {
		report.Problem(&document.Origin{File: path, Line: root.Line, Column: root.Column},
			"The file must consist of settings, one per line, such as \"resync: 10s\"")
		return
	}
	for _, e := range root.Entries {
		if problem := s.take(e.Key.Text, e.Value); problem != "" {
			report.Problem(&document.Origin{File: path, Line: e.Key.Line, Column: e.Key.Column}, "%s", problem)
		}
	}
}

// readAll reads the file; nil if there is none. It reads at most one byte more than
// allowed, which is enough to see that the file is too long.
func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fileError{path: path, problems: []string{fmt.Sprintf("It cannot be opened: %v.", err)}}
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, document.MaxBytes+1))
	if err != nil {
		return nil, &fileError{path: path, problems: []string{fmt.Sprintf("It cannot be read: %v.", err)}}
	}
	return raw, nil
}

// take sets one setting and returns its problem as a sentence; empty if there is none.
// Underscores in the name are allowed, as in the fields of a sandbox file.
func (s *settings) take(written string, value *document.Node) string {
	name := strings.ReplaceAll(written, "_", "-")
	if !slices.Contains(s.known(), name) {
		return fmt.Sprintf("There is no setting %q; the settings are %s.", written, strings.Join(s.known(), ", "))
	}
	if s.from[name] {
		return fmt.Sprintf("The setting %q is given twice; remove one.", name)
	}
	s.from[name] = true
	flag := s.cmd.Flags().Lookup(name)
	if flag == nil {
		return "" // doctor has a flag for only one setting
	}
	_, isList := flag.Value.(rangesValue)
	words, ok := scalars(value, isList)
	switch {
	case !ok && isList:
		return fmt.Sprintf("The setting %q needs a value or a list of values.", name)
	case !ok:
		return fmt.Sprintf("The setting %q needs one value.", name)
	case flag.Changed:
		// The flag overrides the file, but check the file's value too: without the flag it
		// is used next time.
		return s.try(name, words)
	}
	for _, word := range words {
		if err := flag.Value.Set(word); err != nil {
			return fmt.Sprintf("The setting %q is not valid: %v.", name, err)
		}
	}
	return ""
}

// try returns the problem of a value without setting it; empty if there is none.
func (s *settings) try(name string, words []string) string {
	scratch := addSettings(newScratch())
	for _, word := range words {
		if err := scratch.cmd.Flags().Lookup(name).Value.Set(word); err != nil {
			return fmt.Sprintf("The setting %q is not valid: %v.", name, err)
		}
	}
	return ""
}

// scalars returns the words of a value: its items if list is set and it is a list.
func scalars(value *document.Node, list bool) ([]string, bool) {
	nodes := []*document.Node{value}
	if list && value.Kind == document.List {
		nodes = value.Items
	}
	words := make([]string, 0, len(nodes))
	for _, n := range nodes {
		switch n.Kind {
		case document.List, document.Map, document.Null:
			return nil, false
		}
		words = append(words, n.Text)
	}
	return words, len(words) > 0
}
