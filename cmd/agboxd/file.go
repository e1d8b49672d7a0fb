package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is far more than a configuration file can need, in bytes.
const maxFile = 1 << 20

// fileError tells of everything that is wrong with the configuration file.
type fileError struct {
	path     string
	problems []string
}

func (e *fileError) Error() string {
	return fmt.Sprintf("The configuration file %s is not valid; mend it or remove it.\n  %s", e.path, strings.Join(e.problems, "\n  "))
}

// readFile takes from the file what no flag sets. There may be no file. One that
// is not all right is refused as a whole: a daemon that runs other than its
// operator thinks is worse than one that does not start.
func (s *settings) readFile(path string) error {
	raw, err := readAll(path)
	if err != nil || raw == nil {
		return err
	}
	file := &fileError{path: path}
	root, problem := document(raw)
	if problem != "" {
		file.problems = append(file.problems, problem)
		return file
	}
	if root == nil {
		return nil
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if problem := s.take(key, value); problem != "" {
			file.problems = append(file.problems, fmt.Sprintf("Line %d: %s", key.Line, problem))
		}
	}
	if len(file.problems) > 0 {
		return file
	}
	return nil
}

func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fileError{path: path, problems: []string{fmt.Sprintf("It cannot be opened: %v.", err)}}
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, &fileError{path: path, problems: []string{fmt.Sprintf("It cannot be read: %v.", err)}}
	case len(raw) > maxFile:
		return nil, &fileError{path: path, problems: []string{"It is longer than 1 MiB."}}
	}
	return raw, nil
}

// yamlLine finds the line in an error of the YAML library.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// document returns the map of the file; nil if the file holds nothing.
func document(raw []byte) (root *yaml.Node, problem string) {
	in := yaml.NewDecoder(bytes.NewReader(raw))
	var doc, second yaml.Node
	switch err := in.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, ""
	case err != nil:
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil && m[1] != "" {
			return nil, fmt.Sprintf("Line %s: It is not YAML: %s.", m[1], m[2])
		}
		return nil, fmt.Sprintf("It is not YAML: %s.", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	root = doc.Content[0]
	switch {
	case root.Kind == yaml.ScalarNode && root.Tag == "!!null":
		root = nil
	case root.Kind != yaml.MappingNode:
		return nil, fmt.Sprintf("Line %d: It does not consist of settings, one per line, such as \"resync: 10s\".", root.Line)
	}
	if err := in.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, "It holds more than one document."
	}
	return root, ""
}

// take sets one setting and says in a sentence what is wrong with it; empty if nothing.
func (s *settings) take(key, value *yaml.Node) string {
	name := key.Value
	if key.Kind != yaml.ScalarNode || !slices.Contains(s.known(), name) {
		return fmt.Sprintf("There is no setting %q; there are %s.", name, strings.Join(s.known(), ", "))
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

func scalars(value *yaml.Node, list bool) ([]string, bool) {
	nodes := []*yaml.Node{value}
	if list && value.Kind == yaml.SequenceNode {
		nodes = value.Content
	}
	words := make([]string, 0, len(nodes))
	for _, n := range nodes {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return nil, false
		}
		words = append(words, n.Value)
	}
	return words, len(words) > 0
}
