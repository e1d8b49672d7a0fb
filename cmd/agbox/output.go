package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/cmd/agbox/view"
)

// format is the value of -o.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
	// formatWide is a table with all columns, of which none is cut.
	formatWide format = "wide"
)

func (f *format) String() string { return string(*f) }

// Type names the values in the help.
func (f *format) Type() string { return "FORMAT" }

// formatFlag is the value of -o. YAML is the JSON in another notation: what a command prints
// as JSON goes through yamlWriter.
type formatFlag struct {
	*format
	yaml, wide bool
}

// String returns what was given.
func (f *formatFlag) String() string {
	if f.yaml {
		return "yaml"
	}
	return f.format.String()
}

// Set takes the value from the command line.
func (f *formatFlag) Set(value string) error {
	f.yaml = value == "yaml"
	switch v := format(value); {
	case f.yaml:
		*f.format = formatJSON
	case v == formatText, v == formatJSON, v == formatWide && f.wide:
		*f.format = v
	case f.wide:
		return fmt.Errorf("use text, wide, json or yaml")
	default:
		return fmt.Errorf("use text, json or yaml")
	}
	return nil
}

// useYAML makes stdout take JSON and print YAML, if -o yaml was given. -q prints ids, whatever -o
// says.
func (a *app) useYAML(cmd *cobra.Command, _ []string) {
	flag := cmd.Flags().Lookup("output")
	if quiet := cmd.Flags().Lookup("quiet"); flag == nil || quiet != nil && quiet.Value.String() == "true" {
		return
	}
	if f, ok := flag.Value.(*formatFlag); ok && f.yaml && !cmd.Flags().Changed("format") {
		a.stdout = &yamlWriter{w: a.stdout}
	}
}

// addFormat adds -o to a command.
func addFormat(cmd *cobra.Command, f *format) {
	*f = formatText
	cmd.Flags().VarP(&formatFlag{format: f}, "output", "o", "text, json or yaml")
	completeWords(cmd, "output", "text", "json", "yaml")
}

// printJSON writes one JSON value, which may be a message.
func printJSON(w io.Writer, value any) error {
	raw, err := jsonOf(value)
	if err != nil {
		return err
	}
	enc := newJSONEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(raw)
}

// printJSONLine writes one message as one line.
func printJSONLine(w io.Writer, m proto.Message) error {
	raw, err := jsonOf(m)
	if err != nil {
		return err
	}
	return newJSONEncoder(w).Encode(raw)
}

// jsonOf is a value as -o json shows it.
func jsonOf(value any) (json.RawMessage, error) {
	if m, ok := value.(proto.Message); ok {
		return view.JSON(m)
	}
	var out bytes.Buffer
	err := newJSONEncoder(&out).Encode(value)
	return out.Bytes(), err
}

// shownLine is a line on stderr that is overwritten: progress on a terminal.
type shownLine struct {
	app *app
	// shown is set while the line is there.
	shown bool
}

// show shows a text on a terminal of that many columns. A line that wraps could not be
// overwritten.
func (l *shownLine) show(text string, width int) {
	fmt.Fprintf(l.app.stderr, "\r\x1b[K%s", cut(text, width-1))
	l.shown = true
}

// clear erases the line.
func (l *shownLine) clear() {
	if l.shown {
		fmt.Fprint(l.app.stderr, "\r\x1b[K")
		l.shown = false
	}
}

// colored reports whether the user wants colours on terminals: see https://no-color.org.
func (a *app) colored() bool {
	none, _ := a.lookupEnv("NO_COLOR")
	kind, _ := a.lookupEnv("TERM")
	return none == "" && kind != "dumb"
}

// cells are the cells of a row: as they are, or with the text of a value.
func cells(values ...any) []view.Cell {
	return collect(values, func(value any) view.Cell {
		if cell, ok := value.(view.Cell); ok {
			return cell
		}
		return view.Text(fmt.Sprint(value))
	})
}

// styles are the looks of words for states, in lower case.
var styles = map[string]view.Style{
	"ready": view.Good, "running": view.Good, "finished": view.Plain, "completed": view.Good, "idle": view.Good, "granted": view.Good,
	"pending": view.Busy, "starting": view.Busy, "stopping": view.Busy, "deleting": view.Busy, "waiting": view.Busy,
	"paused": view.Busy, "wait": view.Busy, "orphaned": view.Busy, "draining": view.Busy, "cancelled": view.Busy,
	"failed": view.Bad, "lost": view.Bad, "crashed": view.Bad, "aborted": view.Bad, "die": view.Bad,
	"stopped": view.Faint, "deleted": view.Faint, "exited": view.Faint,
}

// stateCell shows a state, which may be followed by a remark, in its colour.
func stateCell(state string) view.Cell {
	word, remark, remarked := strings.Cut(state, " ")
	cell := view.Cell{Text: state, Short: word, Style: styles[strings.ToLower(word)]}
	if remarked && cell.Style == view.Good { // it recovers, or is degraded
		cell.Short, cell.Style = strings.Trim(remark, "()"), view.Busy
	}
	return cell
}

// sinceCell shows how long ago a time was, which may be missing.
func (a *app) sinceCell(t *timestamppb.Timestamp) view.Cell {
	if t == nil {
		return view.Text("-")
	}
	return a.agoCell(t.AsTime())
}

func (a *app) agoCell(t time.Time) view.Cell {
	long := ago(a.now(), t)
	number, unit, _ := strings.Cut(long, " ")
	if long == "just now" {
		return view.Cell{Text: long, Short: "now"}
	}
	return view.Cell{Text: long, Short: number + unit[:1]}
}

// newJSONEncoder returns an encoder whose output cannot control a terminal.
func newJSONEncoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(steadyJSON{w})
	enc.SetEscapeHTML(false)
	return enc
}

// steadyJSON escapes characters that control a terminal, and those that change the
// direction of text. Package json escapes only those below U+0020. Every write must be
// whole characters of valid JSON, where these characters are only in strings.
type steadyJSON struct{ w io.Writer }

// Write escapes and writes p.
func (s steadyJSON) Write(p []byte) (int, error) {
	if bytes.IndexFunc(p, steers) < 0 {
		return s.w.Write(p)
	}
	var out bytes.Buffer
	for _, r := range string(p) {
		if steers(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := s.w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// steers reports whether a character of JSON that package json has written must be
// escaped. Line breaks and tabs are not in strings there.
func steers(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}

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

// since is ago for a time that may be missing.
func (a *app) since(t *timestamppb.Timestamp) string { return a.sinceCell(t).Text }

// stdoutWidth is the width of the terminal behind stdout in characters, 0 if stdout is no
// terminal.
func (a *app) stdoutWidth() int {
	if f, ok := a.stdout.(*os.File); ok {
		return terminalWidth(f)
	}
	return 0
}

// usualWidth is the assumed width, in columns, of a terminal that reports none.
const usualWidth = 80

// terminalWidth is the width of the terminal behind a file in columns, 0 if there is none.
func terminalWidth(f *os.File) int {
	width, _, err := term.GetSize(int(f.Fd()))
	switch {
	case err != nil:
		return 0
	case width <= 0:
		return usualWidth
	}
	return width
}
