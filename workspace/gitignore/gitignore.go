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

// wildcards are the characters of a glob that do not stand for themselves.
const wildcards = `*?[\`

// match matches the pattern against a text. In a path, '*', '?' and '[' do not match a
// slash, and "**" between slashes matches any number of directories. It also returns its
// cost in steps, at most about the product of both lengths.
func (r *rule) match(text string) (ok bool, steps int) {
	glob := r.glob
	switch {
	case r.wild < 0:
		return glob == text, 1
	case r.suffix:
		return strings.HasSuffix(text, glob[1:]), 1
	case r.anchored:
		// Git compares the part before the first wildcard literally and matches the rest as
		// if it were the whole pattern: "foo**/bar" matches foobar and foo/x/bar.
		if text, ok = strings.CutPrefix(text, glob[:r.wild]); !ok {
			return false, 1
		}
		glob = glob[r.wild:]
	}
	m := matcher{glob: glob, text: text, path: r.anchored, star: none, folders: none}
	return m.run(), m.steps + 1
}

// none is the position in a glob of a star that was not met.
const none = -1

// matcher matches from left to right. After a mismatch, the last star takes one more byte;
// if it cannot, the last "**" takes one more directory. Earlier stars never need another
// attempt: the rest of the glob after the last star matches any suffix that it would
// match if an earlier star had taken more. A star that does not match slashes is done with
// at the next slash, because the text of its segment is then used up.
type matcher struct {
	glob, text string
	path       bool
	// g and t are the positions in glob and text.
	g, t int
	// star is the position in glob after the last star, none if there is none in this
	// segment. starText is where in the text the attempt began.
	star, starText int
	// folders is the position in glob after the last "**/", none if there is none.
	// foldersText is the position in the text from which the next slash is looked for.
	folders, foldersText int
	// steps counts the bytes of glob and text that were looked at.
	steps int
}

func (m *matcher) run() bool {
	for m.g < len(m.glob) || m.t < len(m.text) {
		if m.g < len(m.glob) && m.glob[m.g] == '*' {
			if end, ok := m.stars(); end {
				return ok
			}
			continue
		}
		if m.next() || m.retryStar() || m.retryFolders() {
			continue
		}
		return false
	}
	return true
}

// next matches one byte of the text.
func (m *matcher) next() bool {
	m.steps++
	if m.g == len(m.glob) || m.t == len(m.text) {
		return false
	}
	next, ok := m.one(m.g, m.text[m.t])
	m.steps += next - m.g
	if !ok {
		return false
	}
	if m.path && m.text[m.t] == '/' {
		m.star = none
	}
	m.g, m.t = next, m.t+1
	return true
}

// retryStar lets the last star match one more byte.
func (m *matcher) retryStar() bool {
	if m.star == none || m.starText == len(m.text) || m.path && m.text[m.starText] == '/' {
		return false
	}
	m.starText++
	m.g, m.t = m.star, m.starText
	return true
}

// retryFolders lets the last "**" match one more directory.
func (m *matcher) retryFolders() bool {
	if m.folders == none {
		return false
	}
	n := strings.IndexByte(m.text[m.foldersText:], '/')
	if n < 0 {
		return false
	}
	m.steps += n
	m.foldersText += n + 1
	m.g, m.t, m.star = m.folders, m.foldersText, none
	return true
}

// stars goes past the stars at g. end means that the match is decided, and ok how.
func (m *matcher) stars() (end, ok bool) {
	begin := m.g
	for m.g < len(m.glob) && m.glob[m.g] == '*' {
		m.g++
	}
	m.steps += m.g - begin
	rest := m.glob[m.g:]
	if m.path && m.g-begin >= 2 && (begin == 0 || m.glob[begin-1] == '/') {
		switch {
		case rest == "":
			return true, true
		case rest[0] == '/': // "**/" also matches the empty string
			m.g++
			m.folders, m.foldersText, m.star = m.g, m.t, none
			return false, false
		case strings.HasPrefix(rest, `\/`): // it does not
			m.folders, m.foldersText = m.g+len(`\/`), m.t
			return !m.retryFolders(), false
		}
	}
	m.star, m.starText = m.g, m.t
	return rest == "" && !m.path, true
}

// one matches one byte. It returns the position of the next element of the glob.
func (m *matcher) one(g int, c byte) (next int, ok bool) {
	switch m.glob[g] {
	case '?':
		return g + 1, c != '/'
	case '[':
		return m.class(g, c)
	case '\\':
		if g+1 == len(m.glob) {
			return g, false
		}
		return g + 2, m.glob[g+1] == c
	}
	return g + 1, m.glob[g] == c
}

// class matches a byte against [...]. An unterminated class matches nothing.
func (m *matcher) class(g int, c byte) (next int, ok bool) {
	i := g + 1
	negated := i < len(m.glob) && (m.glob[i] == '!' || m.glob[i] == '^')
	if negated {
		i++
	}
	found := false
	for first := true; ; first = false {
		if i >= len(m.glob) {
			return i, false
		}
		if m.glob[i] == ']' && !first {
			return i + 1, found != negated && c != '/'
		}
		if m.glob[i] == '[' && i+1 < len(m.glob) && m.glob[i+1] == ':' {
			n := strings.IndexByte(m.glob[i+2:], ']')
			if n < 0 {
				return i, false
			}
			m.steps += n
			if word, closed := strings.CutSuffix(m.glob[i+2:i+2+n], ":"); closed {
				in, known := named(word, c)
				if !known {
					return i, false
				}
				found = found || in
				i += len(word) + 4
				continue
			}
		}
		low, after, whole := m.literal(i)
		if !whole {
			return i, false
		}
		high := low
		if after+1 < len(m.glob) && m.glob[after] == '-' && m.glob[after+1] != ']' {
			if high, after, whole = m.literal(after + 1); !whole {
				return i, false
			}
		}
		found = found || c == low || low <= c && c <= high // as in git, low matches even if high is below it
		i = after
	}
}

// literal reads one byte of a class, which a backslash may escape.
func (m *matcher) literal(i int) (c byte, next int, ok bool) {
	if m.glob[i] == '\\' {
		i++
	}
	if i >= len(m.glob) {
		return 0, i, false
	}
	return m.glob[i], i + 1, true
}

// named reports whether a byte belongs to a POSIX character class.
func named(word string, c byte) (in, known bool) {
	lower, upper, digit := c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9'
	graph := c > ' ' && c < 0x7f
	switch word {
	case "alpha":
		return lower || upper, true
	case "alnum":
		return lower || upper || digit, true
	case "digit":
		return digit, true
	case "lower":
		return lower, true
	case "upper":
		return upper, true
	case "space":
		return c == ' ' || c >= '\t' && c <= '\r', true
	case "blank":
		return c == ' ' || c == '\t', true
	case "punct":
		return graph && !lower && !upper && !digit, true
	case "print":
		return graph || c == ' ', true
	case "graph":
		return graph, true
	case "cntrl":
		return c < ' ' || c == 0x7f, true
	case "xdigit":
		return digit || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F', true
	}
	return false, false
}
