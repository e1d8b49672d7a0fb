package gitignore

import "strings"

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
