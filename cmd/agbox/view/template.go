// This file prints items as the user's template says: the template of --format,
// a Go template over the fields of the JSON output.

package view

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"
)

// Template is a template and what surrounds it.
type Template struct {
	// heading is set once the template is executed for the head of a table.
	heading  bool
	table    bool
	template *template.Template
}

// ParseTemplate reads the value of --format: a template, "table" and a template whose columns are
// separated by tabs, or json for a line of JSON per item. \t and \n in the template are a
// tab and a line break.
func ParseTemplate(text string) (*Template, error) {
	f := new(Template)
	text, f.table = strings.CutPrefix(text, "table ")
	if text == "json" {
		text = "{{json .}}"
	}
	text = strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(text)
	var err error
	f.template, err = template.New("--format").Option("missingkey=error").Funcs(f.functions()).Parse(text)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	return f, nil
}

// Print writes items, which are JSON objects. A table fits the terminal that options names.
// Texts are escaped, so that they cannot control a terminal.
func (f *Template) Print(w io.Writer, items []json.RawMessage, options Options) error {
	var lines []string
	for i, raw := range items {
		item, err := decodeItem(raw)
		if err != nil {
			return err
		}
		if i == 0 && f.table {
			lines = append(lines, f.head(item))
		}
		var b strings.Builder
		if err := f.template.Execute(&b, item); err != nil {
			return explained(err, item)
		}
		lines = append(lines, PrintableLines(b.String())) // what is left, such as keys
	}
	if len(lines) == 0 {
		return nil
	}
	if !f.table {
		_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
		return err
	}
	_, err := io.WriteString(w, columns(lines, options))
	return err
}

// columns renders lines whose cells are separated by tabs.
func columns(lines []string, options Options) string {
	const least = 8 // as narrow as a column may become
	var head []Column
	for title := range strings.SplitSeq(lines[0], "\t") {
		head = append(head, Column{Title: title, Min: least})
	}
	var rows [][]Cell
	for _, line := range lines[1:] {
		var row []Cell
		for text := range strings.SplitSeq(line, "\t") {
			row = append(row, Text(text))
		}
		rows = append(rows, row)
	}
	return Render(head, rows, options)
}

// head is the template with the names of the fields in place of the values. It is empty
// for a template that cannot take them.
func (f *Template) head(item map[string]any) string {
	f.heading = true
	defer func() { f.heading = false }()
	var b strings.Builder
	if f.template.Execute(&b, titles(item)) != nil {
		return ""
	}
	return b.String()
}

func titles(item map[string]any) map[string]any {
	out := make(map[string]any, len(item))
	for key, value := range item {
		if inner, ok := value.(map[string]any); ok {
			out[key] = titles(inner)
		} else {
			out[key] = printableText(strings.ToUpper(strings.ReplaceAll(key, "_", " ")))
		}
	}
	return out
}

var missingKey = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`map has no entry for key "(.*)"`) })

// explained names the fields if a template has one that does not exist.
func explained(err error, item map[string]any) error {
	if key := missingKey().FindStringSubmatch(err.Error()); key != nil {
		return fmt.Errorf("there is no field %q; the fields are %s", key[1], strings.Join(slices.Sorted(maps.Keys(item)), ", "))
	}
	return errors.New(strings.TrimPrefix(err.Error(), "template: "))
}

// printableText is a string that is escaped where it is printed, and whole in JSON.
type printableText string

func (t printableText) String() string { return Printable(string(t)) }

// noValue is null: it prints nothing and is false.
type noValue struct{}

func (*noValue) String() string { return "" }

// MarshalJSON writes null.
func (*noValue) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// decodeItem reads an object as templates use it.
func decodeItem(raw json.RawMessage) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var item map[string]any
	if err := dec.Decode(&item); err != nil {
		return nil, err
	}
	for key, value := range item {
		item[key] = usableJSON(value)
	}
	return item, nil
}

func usableJSON(value any) any {
	switch v := value.(type) {
	case nil:
		return (*noValue)(nil)
	case string:
		return printableText(v)
	case json.Number:
		return jsonNumber(v)
	case []any:
		for i := range v {
			v[i] = usableJSON(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = usableJSON(v[key])
		}
	}
	return value
}

// jsonNumber is an integer if it is one, so that templates can compare it.
func jsonNumber(n json.Number) any {
	if i, err := n.Int64(); err == nil {
		return i
	}
	var u uint64
	if _, err := fmt.Sscan(n.String(), &u); err == nil && fmt.Sprint(u) == n.String() {
		return u
	}
	f, _ := n.Float64() // encoding/json has checked it
	return f
}

// functions are those that docker has too.
func (f *Template) functions() template.FuncMap {
	return template.FuncMap{
		"json": func(v any) (string, error) {
			if f.heading {
				return fmt.Sprint(v), nil
			}
			var b bytes.Buffer
			enc := json.NewEncoder(&b)
			enc.SetEscapeHTML(false)
			err := enc.Encode(v)
			return Printable(strings.TrimSuffix(b.String(), "\n")), err
		},
		"join": func(list any, separator string) string {
			words, ok := list.([]any)
			if !ok {
				return fmt.Sprint(list)
			}
			texts := make([]string, len(words))
			for i := range words {
				texts[i] = fmt.Sprint(words[i])
			}
			return strings.Join(texts, separator)
		},
		"lower": func(v any) string { return strings.ToLower(fmt.Sprint(v)) },
		"upper": func(v any) string { return strings.ToUpper(fmt.Sprint(v)) },
		"split": func(v any, separator string) []string { return strings.Split(fmt.Sprint(v), separator) },
		"truncate": func(v any, columns int) string {
			return Cut(fmt.Sprint(v), max(columns, 0))
		},
	}
}
