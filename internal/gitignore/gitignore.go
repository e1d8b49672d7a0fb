// Package gitignore evaluates patterns in the syntax of .gitignore.
//
// It is our own implementation because it must agree with git: the maintained
// libraries misread common patterns, such as "*", "!*/", "!*.go". The tests compare it
// with git itself.
package gitignore

import "strings"

// Rules are the patterns of one file.
type Rules struct {
	// dir is the directory that the patterns apply to, relative to the top; "" is the top.
	dir   string
	rules []rule
}

type rule struct {
	// glob is matched against the name alone, or against the path from dir if anchored.
	glob     string
	anchored bool
	// onlyDirs restricts the rule to directories.
	onlyDirs bool
	// keep includes again what an earlier pattern excluded.
	keep bool
}

// Parse parses the lines of a .gitignore file in dir, a path relative to the top. An
// invalid pattern matches nothing, as in git.
func Parse(dir, content string) Rules {
	r := Rules{dir: dir}
	for line := range strings.Lines(strings.TrimPrefix(content, "\ufeff")) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if one, ok := parse(line); ok {
			r.rules = append(r.rules, one)
		}
	}
	return r
}

// Patterns returns the Rules for a list of patterns that apply to the top.
func Patterns(patterns []string) Rules {
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
	return r, r.glob != ""
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
// excluded directory is excluded too; callers must not call Decide for it.
func (r Rules) Decide(path string, isDir bool) (decided, out bool) {
	from := path
	if r.dir != "" {
		var below bool
		if from, below = strings.CutPrefix(path, r.dir+"/"); !below {
			return false, false
		}
	}
	name := from[strings.LastIndexByte(from, '/')+1:]
	for i := len(r.rules) - 1; i >= 0; i-- {
		one := r.rules[i]
		text := name
		if one.anchored {
			text = from
		}
		if (isDir || !one.onlyDirs) && match(one.glob, text, one.anchored) {
			return true, !one.keep
		}
	}
	return false, false
}
