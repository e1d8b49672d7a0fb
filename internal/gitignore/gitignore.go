// Package gitignore says what patterns in the syntax of .gitignore leave out.
//
// It is its own because it has to agree with git: of the libraries, those that are
// kept well misread patterns that people write, such as "*", "!*/", "!*.go". The
// tests hold it against git itself.
package gitignore

import "strings"

// Rules are the patterns of one file.
type Rules struct {
	// dir is the folder that the patterns are about, below the top; "" is the top.
	dir   string
	rules []rule
}

type rule struct {
	// glob is compared with the name alone, or with the path from dir if anchored.
	glob     string
	anchored bool
	// onlyDirs matches directories alone.
	onlyDirs bool
	// keep brings back what an earlier pattern left out.
	keep bool
}

// Parse reads the lines of a .gitignore file that stands in dir, a path below the
// top. What cannot be a pattern matches nothing, as with git.
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

// Patterns makes Rules of the top from patterns that stand in a list.
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

// trimSpaces takes spaces from the end that no backslash protects.
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

// Decide tells whether any pattern is about a path below the top, and whether that
// is left out; the last one that matches decides. What is below something that is
// left out is left out too, and not to be asked about.
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
