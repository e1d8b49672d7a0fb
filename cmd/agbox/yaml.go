package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// yamlWriter prints as YAML what is written to it as JSON. Each write is whole values; each
// value becomes a document.
type yamlWriter struct {
	w io.Writer
	// further is set once a document was printed.
	further bool
}

// Write prints the values in p.
func (y *yamlWriter) Write(p []byte) (int, error) {
	values := json.NewDecoder(bytes.NewReader(p))
	values.UseNumber()
	for {
		node, err := yamlNode(values)
		if errors.Is(err, io.EOF) {
			return len(p), nil
		}
		if err != nil {
			return 0, err
		}
		if err := y.print(node); err != nil {
			return 0, err
		}
	}
}

// print writes a document. A program that goes on prints several.
func (y *yamlWriter) print(node *yaml.Node) error {
	var out bytes.Buffer
	if y.further {
		out.WriteString("---\n")
	}
	y.further = true
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(node), enc.Close()); err != nil {
		return err
	}
	_, err := steadyJSON{y.w}.Write(out.Bytes())
	return err
}

// yamlNode reads a value of JSON. The keys of an object keep their order.
func yamlNode(values *json.Decoder) (*yaml.Node, error) {
	token, err := values.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Delim:
		node := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		if v == '{' {
			node = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		}
		for values.More() { // of an object, a key and its value are two tokens
			child, err := yamlNode(values)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, child)
		}
		if len(node.Content) == 0 {
			node.Style = yaml.FlowStyle
		}
		_, err := values.Token() // the end
		return node, err
	case string:
		return yamlText(v), nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: v.String()}, nil
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(token)}, nil
}

// yamlText is a text. One with characters that control a terminal is in double quotes, where
// they can be escaped.
func yamlText(text string) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if strings.IndexFunc(text, func(r rune) bool {
		return steers(r) || r == '\t' || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)
	}) >= 0 {
		node.Style = yaml.DoubleQuotedStyle
	}
	return node
}
