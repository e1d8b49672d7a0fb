package document

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxBytes is the maximum size of a file.
	MaxBytes = 1 << 20
	// maxNodes bounds the nodes of a file after its aliases were expanded.
	maxNodes = 20000
	// maxDepth is far deeper than any description of a sandbox.
	maxDepth = 32
	// seekLines and seekBytes are the maximum size of a file in which the line of a
	// syntax error is searched.
	seekLines = 400
	seekBytes = 32 << 10
)

// YAML reads a file with one document. An empty file is Null. It returns nil if the text
// is invalid, and has reported why.
func YAML(file string, content []byte, report *Report) *Node {
	if len(content) > MaxBytes {
		report.Problem(&Origin{File: file, Line: 1}, "The file is longer than %d bytes: remove what does not belong in it", MaxBytes)
		return nil
	}
	root, err := decode(content)
	if err != nil {
		line, column := seek(content)
		report.Problem(&Origin{File: file, Line: line, Column: column}, "This is not YAML: %s", plain(err))
		return nil
	}
	if root.second != nil {
		report.Problem(&Origin{File: file, Line: root.second.Line, Column: root.second.Column},
			"The file holds more than one document: remove the others")
		return nil
	}
	if root.first == nil {
		return &Node{Line: 1, Column: 1}
	}
	c := converter{file: file, report: report, open: make(map[*yaml.Node]bool)}
	node := c.node(root.first, "", 0)
	if c.broken {
		return nil
	}
	return node
}

type documents struct{ first, second *yaml.Node }

// decode reads the first document and the start of a second one.
func decode(content []byte) (found documents, err error) {
	// The library is known to panic on some broken input.
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("it cannot be read at all")
		}
	}()
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for _, into := range []**yaml.Node{&found.first, &found.second} {
		doc := new(yaml.Node)
		switch err := decoder.Decode(doc); {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return found, err
		}
		*into = doc
		if doc.Kind == yaml.DocumentNode && len(doc.Content) > 0 {
			*into = doc.Content[0]
		}
	}
	return found, nil
}

var yamlLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(yaml: )?(line [0-9]+: )?`) })

// plain returns an error of the library without its prefix, as part of a sentence.
func plain(err error) string {
	text := yamlLine().ReplaceAllString(err.Error(), "")
	switch {
	case strings.Contains(text, "cannot start any token"):
		return text + "; put the value in quotes, and indent with spaces"
	case strings.Contains(text, "tab character"):
		return "a tab stands at the beginning of the line; indent with spaces"
	case strings.Contains(text, "mapping values are not allowed"):
		return "a second ':' stands in one line, or the line is indented too far; put the value in quotes, or correct the indentation"
	case strings.Contains(text, "did not find expected key"), strings.Contains(text, "did not find expected '-'"):
		return text + "; make the indentation the same as that of the lines beside it"
	case strings.Contains(text, "could not find expected ':'"):
		return "a key without ':' stands here, or a value goes on in the wrong column; write 'key: value'"
	case strings.Contains(text, "unknown anchor"):
		return text + "; define it above with '&', or put the value in quotes"
	case strings.Contains(text, "unexpected end of stream"):
		return text + "; close the quote that is opened here"
	case strings.Contains(text, "did not find expected ',' or"):
		return text + "; close the bracket that is opened here"
	}
	return text + "; correct the line"
}

// seek finds the line of a syntax error: the line after the longest prefix of the file
// that is valid. The library itself often reports the line where the surrounding element
// starts.
func seek(content []byte) (line, column int) {
	lines := bytes.SplitAfter(content, []byte("\n"))
	if len(lines) > seekLines || len(content) > seekBytes {
		return 1, 0
	}
	end := len(content)
	for i, text := range slices.Backward(lines) {
		end -= len(text)
		if _, err := decode(content[:end]); err == nil {
			return i + 1, len(text) - len(bytes.TrimLeft(text, " \t")) + 1
		}
	}
	return 1, 1
}

// converter converts nodes of the library.
type converter struct {
	file   string
	report *Report
	nodes  int
	broken bool
	// open has the anchors being read, to detect one that contains itself.
	open map[*yaml.Node]bool
}

func (c *converter) at(n *yaml.Node) *Origin {
	return &Origin{File: c.file, Line: n.Line, Column: n.Column}
}

// fail abandons the file with one problem.
func (c *converter) fail(n *yaml.Node, format string, args ...any) *Node {
	if !c.broken {
		c.broken = true
		c.report.Problem(c.at(n), format, args...)
	}
	return &Node{Line: n.Line, Column: n.Column}
}

// node converts the value at a path. The path is for messages.
func (c *converter) node(n *yaml.Node, path string, depth int) *Node {
	if c.nodes++; c.nodes > maxNodes {
		return c.fail(n, "The file has more than %d values, with those that its aliases stand for: remove what does not belong in it", maxNodes)
	}
	if depth > maxDepth {
		return c.fail(n, "The value is nested more than %d deep: write it flatter", maxDepth)
	}
	out := &Node{Line: n.Line, Column: n.Column}
	switch n.Kind {
	case yaml.AliasNode:
		if c.open[n.Alias] {
			return c.fail(n, "The alias *%.80s stands within its own anchor: remove it", n.Value)
		}
		read := *c.node(n.Alias, path, depth)
		read.Line, read.Column = n.Line, n.Column
		return &read
	case yaml.SequenceNode:
		c.open[n] = true
		out.Kind = List
		for i, item := range n.Content {
			if c.broken {
				break
			}
			out.Items = append(out.Items, c.node(item, Item(path, i), depth+1))
		}
		delete(c.open, n)
	case yaml.MappingNode:
		c.open[n] = true
		out.Kind = Map
		c.entries(out, n, path, depth)
		delete(c.open, n)
	case yaml.ScalarNode:
		c.scalar(out, n)
	}
	return out
}

func (c *converter) scalar(out *Node, n *yaml.Node) {
	out.Text = n.Value
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp", "!!merge":
		out.Kind = String
	case "!!int":
		out.Kind = Int
	case "!!float":
		out.Kind = Float
	case "!!bool":
		out.Kind = Bool
	case "!!null":
		out.Kind, out.Text = Null, ""
	default:
		out.Kind = String
		c.fail(n, "The tag %.80s is not known here: write the value without it", tag)
	}
}

func (c *converter) entries(out *Node, n *yaml.Node, path string, depth int) {
	seen := make(map[string]int, len(n.Content)/2)
	var merged []*Node
	for i := 0; i+1 < len(n.Content) && !c.broken; i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			c.fail(key, "A key is a list or a map: write a word before the ':'")
			return
		}
		if key.ShortTag() == "!!merge" {
			merged = append(merged, c.merged(value, path, depth)...)
			continue
		}
		if before, twice := seen[key.Value]; twice {
			o := c.at(key)
			o.Path = Child(path, key.Value)
			c.report.Problem(o, "The key %s is in this map already, in line %d: remove one of the two", shorten(key.Value), before)
			continue
		}
		seen[key.Value] = key.Line
		out.Entries = append(out.Entries, Entry{
			Key:   &Node{Kind: String, Text: key.Value, Line: key.Line, Column: key.Column},
			Value: c.node(value, Child(path, key.Value), depth+1),
		})
	}
	// The map's own keys take precedence; of several merged maps, the first one's.
	for _, from := range merged {
		for _, e := range from.Entries {
			if _, there := seen[e.Key.Text]; !there {
				seen[e.Key.Text] = e.Key.Line
				out.Entries = append(out.Entries, e)
			}
		}
	}
}

// merged reads the value of "<<".
func (c *converter) merged(value *yaml.Node, path string, depth int) []*Node {
	read := c.node(value, path, depth+1)
	switch read.Kind {
	case Map:
		return []*Node{read}
	case List:
		if !slices.ContainsFunc(read.Items, func(item *Node) bool { return item.Kind != Map }) {
			return read.Items
		}
	}
	c.fail(value, "Behind << stands the alias of a map, for example <<: *common")
	return nil
}
