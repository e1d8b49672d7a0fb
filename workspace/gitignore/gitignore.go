// Package gitignore evaluates patterns in the syntax of .gitignore, and reads the index and the
// references of a repository.
//
// It is our own implementation because it must agree with git: the maintained
// libraries misread common patterns, such as "*", "!*/", "!*.go". The tests compare it
// with git itself.
package gitignore

import (
	"fmt"
	"strings"
)

const (
	// MaxPattern is the maximum length of a pattern in bytes, that of a path in Linux.
	MaxPattern = 4096
	// MaxPatterns is the maximum number of patterns in one list.
	MaxPatterns = 10_000
)

// Rules are the patterns of one file.
type Rules struct {
	// dir is the directory that the patterns apply to, relative to the top; "" is the top.
	dir   string
	rules []rule
}

// Len returns the number of patterns.
func (r Rules) Len() int { return len(r.rules) }

// LineError is an error at a line of a file.
type LineError struct {
	// Line counts from 1.
	Line int
	// Why says what is wrong, without a period.
	Why string
}

// Error returns the line and what is wrong.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Why) }

// Budget limits the work of matching. It is not safe for concurrent use.
type Budget struct {
	// Left is how many bytes of patterns and names may still be compared. Decide subtracts
	// what it used.
	Left int
}

type rule struct {
	// glob is matched against the name alone, or against the path from dir if anchored.
	glob     string
	anchored bool
	// onlyDirs restricts the rule to directories.
	onlyDirs bool
	// keep includes again what an earlier pattern excluded.
	keep bool
	// line is the number of the line, from 1.
	line int32
	// wild is the position of the first wildcard in glob, negative if there is none.
	wild int32
	// suffix means that glob is a star and a literal end of a name, the usual "*.o".
	suffix bool
}

// Parse parses the lines of a .gitignore file in dir, a path relative to the top. An
// invalid pattern matches nothing, as in git. It returns a *LineError for a pattern longer
// than MaxPattern and for more than MaxPatterns.
func Parse(dir, content string) (Rules, error) {
	r := Rules{dir: dir}
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(content, "\ufeff")) {
		n++
		one, ok := parse(strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"))
		switch {
		case !ok:
			continue
		case len(one.glob) > MaxPattern:
			return Rules{}, &LineError{n, fmt.Sprintf("the pattern has %d bytes, at most %d are supported", len(one.glob), MaxPattern)}
		case len(r.rules) == MaxPatterns:
			return Rules{}, &LineError{n, fmt.Sprintf("there are more than %d patterns", MaxPatterns)}
		}
		one.line = int32(n)
		r.rules = append(r.rules, one)
	}
	return r, nil
}

// Patterns returns the Rules for a list of patterns that apply to the top. The line of an
// error is the position in the list, from 1, if no pattern has line breaks.
func Patterns(patterns []string) (Rules, error) {
	return Parse("", strings.Join(patterns, "\n"))
}

func parse(line string) (rule, bool) {
	line = trimSpaces(line)
	if line == "" || line[0] == '#' {
		return rule{}, false
	}
	var r rule
	if line[0] == '!' {
		r.keep, line = true, line[1:]
	}
	if strings.HasSuffix(line, "/") {
		r.onlyDirs, line = true, line[:len(line)-1]
	}
	r.anchored = strings.Contains(line, "/")
	r.glob = strings.TrimPrefix(line, "/")
	r.plan()
	return r, r.glob != ""
}

// plan finds the wildcards of the glob once for all names.
func (r *rule) plan() {
	r.wild = int32(strings.IndexAny(r.glob, wildcards))
	r.suffix = !r.anchored && strings.HasPrefix(r.glob, "*") && !strings.ContainsAny(r.glob[1:], wildcards)
}

// trimSpaces removes trailing spaces, except one that a backslash protects.
func trimSpaces(line string) string {
	for strings.HasSuffix(line, " ") {
		rest := line[:len(line)-1]
		slashes := len(rest) - len(strings.TrimRight(rest, `\`))
		if slashes%2 == 1 {
			return line
		}
		line = rest
	}
	return line
}

// Decide reports whether any pattern matches a path relative to the top, and if so
// whether the path is excluded. The last matching pattern decides. Everything below an
// excluded directory is excluded too; callers must not call Decide for it. If the budget
// is used up, it returns a *LineError for the pattern that used the rest.
func (r Rules) Decide(path string, isDir bool, budget *Budget) (decided, out bool, err error) {
	from := path
	if r.dir != "" {
		var below bool
		if from, below = strings.CutPrefix(path, r.dir+"/"); !below {
			return false, false, nil
		}
	}
	name := from[strings.LastIndexByte(from, '/')+1:]
	for i := len(r.rules) - 1; i >= 0; i-- {
		one := &r.rules[i]
		if one.onlyDirs && !isDir {
			budget.Left--
			continue
		}
		text := name
		if one.anchored {
			text = from
		}
		matched, steps := one.match(text)
		if budget.Left -= steps; budget.Left < 0 {
			return false, false, &LineError{int(one.line), "the patterns up to this one take too long to compare with the names of the folder"}
		}
		if matched {
			return true, !one.keep, nil
		}
	}
	return false, false, nil
}
