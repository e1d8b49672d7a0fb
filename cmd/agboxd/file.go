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

// fileError tells of everything that is wrong with the configuration file.
type fileError struct {
	path string
	// problems are sentences, each with its line where it has one.
	problems []string
}

func (e *fileError) Error() string {
	return fmt.Sprintf("The configuration file %s is not valid; correct it or remove it.\n  %s", e.path, strings.Join(e.problems, "\n  "))
}

// readFile takes from the file what no flag sets. There may be no file. One that
// is not all right is refused as a whole: a daemon that runs other than its
// operator thinks is worse than one that does not start.
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

// takeAll takes every setting of the file and reports what is wrong.
func (s *settings) takeAll(root *document.Node, path string, report *document.Report) {
	if root.Kind == document.Null {
		return
	}
	if root.Kind != document.Map {
		report.Problem(&document.Origin{File: path, Line: root.Line, Column: root.Column},
			"The file does not consist of settings, one per line, such as \"resync: 10s\"")
		return
	}
	for _, e := range root.Entries {
		if problem := s.take(e.Key.Text, e.Value); problem != "" {
			report.Problem(&document.Origin{File: path, Line: e.Key.Line, Column: e.Key.Column}, "%s", problem)
		}
	}
}

// readAll reads the file, and no more of it than shows that it is too long; nil if
// there is none.
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

// take sets one setting and says in a sentence what is wrong with it; empty if nothing.
// A name may be written with underscores, as the fields of a sandbox file are.
func (s *settings) take(written string, value *document.Node) string {
	name := strings.ReplaceAll(written, "_", "-")
	if !slices.Contains(s.known(), name) {
		return fmt.Sprintf("There is no setting %q; there are %s.", written, strings.Join(s.known(), ", "))
	}
	if s.from[name] {
		return fmt.Sprintf("The setting %q is here a second time; remove one of them.", name)
	}
	s.from[name] = true
	flag := s.cmd.Flags().Lookup(name)
	if flag == nil {
		return "" // doctor has the flag of one setting only
	}
	_, isList := flag.Value.(rangesValue)
	words, ok := scalars(value, isList)
	switch {
	case !ok && isList:
		return fmt.Sprintf("The setting %q needs a value or a list of values.", name)
	case !ok:
		return fmt.Sprintf("The setting %q needs one value.", name)
	case flag.Changed:
		// The flag wins, but the file must be right all the same: it is used without the
		// flag next time. So its value is tried, and what the flag gave is put back.
		return s.try(name, words)
	}
	for _, word := range words {
		if err := flag.Value.Set(word); err != nil {
			return fmt.Sprintf("The setting %q is wrong: %v.", name, err)
		}
	}
	return ""
}

// try tells what would be wrong with words of a setting that a flag has set.
func (s *settings) try(name string, words []string) string {
	scratch := addSettings(newScratch())
	for _, word := range words {
		if err := scratch.cmd.Flags().Lookup(name).Value.Set(word); err != nil {
			return fmt.Sprintf("The setting %q is wrong: %v.", name, err)
		}
	}
	return ""
}

// scalars returns the words of a value: its items where it may be a list.
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
