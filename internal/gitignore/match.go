package gitignore

import "strings"

// match matches a glob against a text. In a path, '*', '?' and '[' do not match a
// slash, and "**" between slashes matches any number of directories.
func match(glob, text string, path bool) bool {
	if path {
		// Git compares the part before the first wildcard literally and matches the rest as
		// if it were the whole pattern: "foo**/bar" matches foobar and foo/x/bar.
		begin := strings.IndexAny(glob, `*?[\`)
		if begin < 0 {
			return glob == text
		}
		var ok bool
		if text, ok = strings.CutPrefix(text, glob[:begin]); !ok {
			return false
		}
		glob = glob[begin:]
	}
	return (&matcher{glob, text, path, make(map[[2]int]bool)}).from(0, 0)
}

type matcher struct {
	glob, text string
	path       bool
	// failed has the positions in glob and text that did not match. Without it, the time
	// for a glob with many stars would grow exponentially.
	failed map[[2]int]bool
}

func (m *matcher) from(g, t int) bool {
	at := [2]int{g, t}
	if m.failed[at] {
		return false
	}
	ok := m.try(g, t)
	if !ok {
		m.failed[at] = true
	}
	return ok
}

func (m *matcher) try(g, t int) bool {
	for g < len(m.glob) {
		if m.glob[g] == '*' {
			return m.stars(g, t)
		}
		if t == len(m.text) {
			return false
		}
		next, ok := m.one(g, m.text[t])
		if !ok {
			return false
		}
		g, t = next, t+1
	}
	return t == len(m.text)
}

// stars matches the rest of the glob, which begins with a star.
func (m *matcher) stars(g, t int) bool {
	end := g
	for end < len(m.glob) && m.glob[end] == '*' {
		end++
	}
	first := g == 0 || m.glob[g-1] == '/'
	rest := m.glob[end:]
	slash := strings.HasPrefix(rest, "/")
	folders := m.path && end-g >= 2 && first && (rest == "" || slash || strings.HasPrefix(rest, `\/`))
	if folders && slash && m.from(end+1, t) {
		return true // "**/" also matches the empty string
	}
	for i := t; ; i++ {
		if m.from(end, i) {
			return true
		}
		if i == len(m.text) || m.path && !folders && m.text[i] == '/' {
			return false
		}
	}
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
			if word, _, closed := strings.Cut(m.glob[i+2:], ":]"); closed && !strings.Contains(word, "]") {
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
