package document

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// JSONC reads JSON with comments and trailing commas, the format of devcontainer.json. It
// returns nil if the text is invalid, and has reported why.
func JSONC(file string, content []byte, report *Report) *Node {
	if len(content) > MaxBytes {
		report.Problem(&Origin{File: file, Line: 1}, "The file is longer than %d bytes: remove what does not belong in it", MaxBytes)
		return nil
	}
	s := &scanner{file: file, text: strings.TrimPrefix(string(content), "\ufeff"), line: 1, column: 1, report: report}
	s.space()
	if s.at == len(s.text) && !s.broken {
		return &Node{Line: 1, Column: 1}
	}
	n := s.value("", 0)
	s.space()
	if !s.broken && s.at < len(s.text) {
		s.fail("Something stands behind the end of the object: remove it")
	}
	if s.broken {
		return nil
	}
	return n
}

// scanner reads from at on.
//
// github.com/tailscale/hujson is not used: it does not limit the depth, so 1 MiB of "["
// overflows the stack and ends the process. It also accepts duplicate keys, and its
// messages do not say what to write instead.
type scanner struct {
	file         string
	text         string
	at           int
	line, column int
	nodes        int
	broken       bool
	report       *Report
}

func (s *scanner) fail(format string, args ...any) {
	if !s.broken {
		s.broken = true
		s.report.Problem(&Origin{File: s.file, Line: s.line, Column: s.column}, format, args...)
	}
}

// peek returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	if s.at >= len(s.text) || s.broken {
		return 0
	}
	return s.text[s.at]
}

// step advances by n bytes.
func (s *scanner) step(n int) {
	for range n {
		switch c := s.text[s.at]; {
		case c == '\n':
			s.line++
			s.column = 1
		case utf8.RuneStart(c):
			s.column++
		}
		s.at++
	}
}

// space skips white space and comments.
func (s *scanner) space() {
	for !s.broken && s.at < len(s.text) {
		rest := s.text[s.at:]
		switch {
		case strings.IndexByte(" \t\r\n", rest[0]) >= 0:
			s.step(1)
		case strings.HasPrefix(rest, "//"):
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest)
			}
			s.step(end)
		case strings.HasPrefix(rest, "/*"):
			end := strings.Index(rest, "*/")
			if end < 0 {
				s.fail("The comment that is opened here with /* is not closed: write */ at its end")
				return
			}
			s.step(end + 2)
		default:
			return
		}
	}
}

// value reads the value at a path. The path is for messages.
func (s *scanner) value(path string, depth int) *Node {
	n := &Node{Line: s.line, Column: s.column}
	if s.nodes++; s.nodes > maxNodes {
		s.fail("The file has more than %d values: remove what does not belong in it", maxNodes)
	}
	if depth > maxDepth {
		s.fail("The value is nested more than %d deep: write it flatter", maxDepth)
	}
	switch s.peek() {
	case '{':
		n.Kind = Map
		s.object(n, path, depth)
	case '[':
		n.Kind = List
		s.list('[', ']', func() { n.Items = append(n.Items, s.value(Item(path, len(n.Items)), depth+1)) })
	case '"':
		n.Kind, n.Text = String, s.str()
	default:
		s.word(n)
	}
	return n
}

// list reads elements between brackets, separated by commas. A trailing comma is allowed.
func (s *scanner) list(open, closing byte, element func()) {
	line, column := s.line, s.column
	s.step(1)
	for {
		s.space()
		switch {
		case s.broken:
			return
		case s.at == len(s.text):
			s.line, s.column = line, column
			s.fail("The %c that is opened here is not closed: write %c at its end", open, closing)
			return
		case s.peek() == closing:
			s.step(1)
			return
		}
		element()
		s.space()
		if s.peek() == ',' {
			s.step(1)
		} else if s.peek() != closing && s.at < len(s.text) {
			s.fail("Here should be a comma or %c", closing)
		}
	}
}

func (s *scanner) object(n *Node, path string, depth int) {
	seen := make(map[string]int)
	s.list('{', '}', func() {
		key := &Node{Kind: String, Line: s.line, Column: s.column}
		if s.peek() != '"' {
			s.fail("Here should be a key in double quotes")
			return
		}
		key.Text = s.str()
		s.space()
		if s.peek() != ':' {
			s.fail("Behind the key %s should be a ':'", shorten(key.Text))
			return
		}
		s.step(1)
		s.space()
		value := s.value(Child(path, key.Text), depth+1)
		if before, twice := seen[key.Text]; twice {
			s.report.Problem(&Origin{File: s.file, Line: key.Line, Column: key.Column, Path: Child(path, key.Text)},
				"The key %s is in this object already, in line %d: remove one of the two", shorten(key.Text), before)
			return
		}
		seen[key.Text] = key.Line
		n.Entries = append(n.Entries, Entry{Key: key, Value: value})
	})
}

// str reads a string in double quotes.
func (s *scanner) str() string {
	end := 1
	for rest := s.text[s.at:]; ; end++ {
		if end >= len(rest) || rest[end] == '\n' {
			s.fail("The string that is opened here is not closed: write \" at its end")
			return ""
		}
		if rest[end] == '\\' {
			end++
		} else if rest[end] == '"' {
			break
		}
	}
	var text string
	if err := json.Unmarshal([]byte(s.text[s.at:s.at+end+1]), &text); err != nil {
		s.fail("The string is not valid JSON: write \\\\ for a backslash and \\\" for a quote")
		return ""
	}
	s.step(end + 1)
	return text
}

// word reads true, false, null or a number.
func (s *scanner) word(n *Node) {
	end := s.at
	for end < len(s.text) && strings.IndexByte(" \t\r\n,]}:/\"", s.text[end]) < 0 {
		end++
	}
	n.Text = s.text[s.at:end]
	switch {
	case n.Text == "true", n.Text == "false":
		n.Kind = Bool
	case n.Text == "null":
		n.Kind, n.Text = Null, ""
	case n.Text != "" && json.Valid([]byte(n.Text)):
		n.Kind = Int
		if strings.ContainsAny(n.Text, ".eE") {
			n.Kind = Float
		}
	default:
		s.fail("Here should be a value: a string in double quotes, a number, true, false, a list or an object")
		return
	}
	s.step(end - s.at)
}
