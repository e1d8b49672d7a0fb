// Package badspecs has sandbox files that must be refused, for tests.
package badspecs

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed badspecs.txt
var text string

// Case is one sandbox file.
type Case struct {
	Name string
	YAML string
	// Want are all problems, in the order in which they are reported.
	Want []Problem
}

// Problem is an expected problem of a file.
type Problem struct {
	Line  uint32
	Field string
	// Says is part of the sentence.
	Says string
}

// All reads the cases.
func All() ([]Case, error) {
	var all []Case
	for section := range strings.SplitSeq(text, "\n=== ") {
		name, rest, _ := strings.Cut(section, "\n")
		head, yaml, found := strings.Cut(rest, "\n---\n")
		if !found {
			continue // the introduction of the file
		}
		c := Case{Name: name, YAML: yaml + "\n"}
		for line := range strings.Lines(head) {
			var p Problem
			words := strings.SplitN(strings.TrimSpace(line), " ", 3)
			if len(words) != 3 {
				return nil, fmt.Errorf("%s: %q is not LINE FIELD SENTENCE", name, line)
			}
			if _, err := fmt.Sscan(words[0], &p.Line); err != nil {
				return nil, fmt.Errorf("%s: %q: %w", name, line, err)
			}
			p.Field, p.Says = words[1], words[2]
			if p.Field == "-" {
				p.Field = ""
			}
			c.Want = append(c.Want, p)
		}
		all = append(all, c)
	}
	return all, nil
}
