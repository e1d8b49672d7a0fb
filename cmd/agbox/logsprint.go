package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/spf13/pflag"
)

const (
	// heldLine is how much of an incomplete line is held, in bytes. A longer line is
	// printed in parts.
	heldLine = 64 << 10
	// lineStamp is the time before a line: microseconds, local time zone.
	lineStamp = "2006-01-02T15:04:05.000000Z07:00"
	// prefixCommand is how much of a command a line's prefix shows, in characters.
	prefixCommand = 24
	// prefixID is how much of an id it shows, in characters.
	prefixID = 6
)

// logsStyle is how output is shown.
type logsStyle struct {
	// times prints a time before each line.
	times bool
	// strip removes escape sequences.
	strip bool
}

// addFlags adds the flags of the style.
func (s *logsStyle) addFlags(f *pflag.FlagSet) {
	f.BoolVarP(&s.times, "timestamps", "t", false, "begin each line with the time of its first byte")
	f.BoolVar(&s.strip, "strip-ansi", false, "remove colours and other escape sequences")
}

// logPrinter prints output as it arrives. Lines with a prefix or a time are held until
// they are complete; other output is written at once.
type logPrinter struct {
	app    *app
	style  logsStyle
	format format
	execs  map[string]*printedExec
	// prefix is set if lines begin with the name of their command. colour gives the
	// names colours. width is that of the widest name so far, in characters.
	prefix, colour bool
	width          int
	// seen counts the commands.
	seen int
	// shown says which of stdout and stderr are terminals.
	shown [2]bool
}

// printedExec is one command's two outputs, stdout first.
type printedExec struct {
	prefix  string
	colour  int
	outputs [2]printedOutput
	told    toldGaps
}

// printedOutput is what is held of one output.
type printedOutput struct {
	// line is the held beginning of a line, begun its time. open means that a part of
	// the line was printed already.
	line  []byte
	begun time.Time
	open  bool
	// rest is an incomplete UTF-8 character and restAt its offset, for JSON.
	rest   []byte
	restAt uint64
	ansi   ansiFilter
	// queries keeps what asks the terminal something from a terminal: the answer would be
	// typed into the shell that agbox was started from.
	queries queryFilter
}

func (a *app) logPrinter(style logsStyle, f format) *logPrinter {
	p := &logPrinter{app: a, style: style, format: f, execs: make(map[string]*printedExec)}
	p.shown[0], p.shown[1] = a.onTerminals()
	return p
}

// stdoutColours reports whether to use colours on stdout.
func (a *app) stdoutColours() bool {
	if value, set := a.lookupEnv("NO_COLOR"); set && value != "" {
		return false
	}
	return a.stdoutWidth() > 0
}

func (p *logPrinter) print(e *agboxv1.ExecStatus, item client.LogItem) error {
	x := p.of(e)
	if item.End != nil {
		return p.end(e, x, item.End)
	}
	i, w := 0, p.app.stdout
	if item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR {
		i, w = 1, p.app.stderr
	}
	out := &x.outputs[i]
	if item.Dropped > 0 {
		return p.gap(e.GetExecId(), x, out, w, item)
	}
	data := item.Data
	if p.format == formatJSON {
		return p.json(e.GetExecId(), item.Stream, out, item.Offset, item.Time, data, false)
	}
	switch {
	case p.style.strip:
		data = out.ansi.filter(data)
	case p.shown[i]:
		data = out.queries.filter(data)
	}
	if !p.style.times && !p.prefix {
		p.app.outages.wrote(data)
		_, err := w.Write(data)
		return err
	}
	return p.lines(w, x, out, data, item.Time)
}

func (p *logPrinter) of(e *agboxv1.ExecStatus) *printedExec {
	x := p.execs[e.GetExecId()]
	if x == nil {
		x = &printedExec{prefix: logPrefix(e), colour: p.seen}
		p.seen++
		p.execs[e.GetExecId()] = x
		p.width = max(p.width, utf8.RuneCountInString(x.prefix))
	}
	return x
}

// logPrefix is a short name of a command.
func logPrefix(e *agboxv1.ExecStatus) string {
	if e.GetName() != "" {
		return printable(e.GetName())
	}
	id := e.GetExecId()
	return id[:min(len(id), prefixID)] + " " + cut(shellWords(e.GetCommand()), prefixCommand)
}

// prefixColours are the colours of the names, used in turn. Red is for errors.
var prefixColours = []int{36, 33, 32, 35, 34, 96, 93, 92, 95, 94}

func (p *logPrinter) head(x *printedExec, begun time.Time) string {
	head := ""
	if p.prefix {
		head = fmt.Sprintf("%-*s | ", p.width, x.prefix)
		if p.colour {
			head = fmt.Sprintf("\x1b[%dm%s\x1b[0m", prefixColours[x.colour%len(prefixColours)], head)
		}
	}
	if p.style.times {
		at := "-"
		if !begun.IsZero() {
			at = begun.Local().Format(lineStamp)
		}
		head += at + " "
	}
	return head
}

// lines prints complete lines and holds the rest.
func (p *logPrinter) lines(w io.Writer, x *printedExec, out *printedOutput, data []byte, at time.Time) error {
	for len(data) > 0 {
		if len(out.line) == 0 && !out.open {
			out.begun = at
		}
		n := bytes.IndexByte(data, '\n') + 1
		whole := n > 0
		if !whole {
			n = len(data)
		}
		out.line = append(out.line, data[:n]...)
		data = data[n:]
		if whole || len(out.line) >= heldLine {
			if err := p.flush(w, x, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush prints the held part of a line.
func (p *logPrinter) flush(w io.Writer, x *printedExec, out *printedOutput) error {
	if len(out.line) == 0 {
		return nil
	}
	line := out.line
	if !out.open {
		line = append([]byte(p.head(x, out.begun)), line...)
	}
	out.open = out.line[len(out.line)-1] != '\n'
	out.line = out.line[:0]
	_, err := w.Write(line)
	return err
}

// flushExec prints the held output of a command. It completes the command's last lines,
// because lines of other commands may follow.
func (p *logPrinter) flushExec(x *printedExec) error {
	for i, w := range []io.Writer{p.app.stdout, p.app.stderr} {
		if err := p.endLine(w, x, &x.outputs[i]); err != nil {
			return err
		}
	}
	return nil
}

// endLine prints the held part of a line and completes the line.
func (p *logPrinter) endLine(w io.Writer, x *printedExec, out *printedOutput) error {
	if err := p.flush(w, x, out); err != nil || !out.open {
		return err
	}
	out.open = false
	_, err := io.WriteString(w, "\n")
	return err
}

func (p *logPrinter) flushAll() error {
	for id, x := range p.execs {
		err := p.flushExec(x)
		if p.format == formatJSON {
			err = p.jsonRest(id, x)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// toldGaps counts the dropped bytes of stdout and stderr whose gaps the user was told of.
type toldGaps [2]uint64

// tell prints a notice about a gap.
func (g *toldGaps) tell(a *app, who string, item client.LogItem) {
	i, stream := 0, "stdout"
	if item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR {
		i, stream = 1, "stderr"
	}
	g[i] += item.Dropped
	a.say("%s%d bytes of %s were dropped here, because the disk or the log was full.", who, item.Dropped, stream)
}

// all reports whether the user was told of every dropped byte of an exec.
func (g *toldGaps) all(e *agboxv1.ExecStatus) bool {
	return g[0] >= e.GetStdoutDroppedBytes() && g[1] >= e.GetStderrDroppedBytes()
}

// gap prints a gap. The held line ends there.
func (p *logPrinter) gap(id string, x *printedExec, out *printedOutput, w io.Writer, item client.LogItem) error {
	if p.format == formatJSON {
		return p.jsonGap(id, out, item)
	}
	if err := p.endLine(w, x, out); err != nil {
		return err
	}
	x.told.tell(p.app, p.who(x), item)
	return nil
}

// who is the prefix of notices about a command.
func (p *logPrinter) who(x *printedExec) string {
	if !p.prefix {
		return ""
	}
	return x.prefix + ": "
}

// end prints held output and the notices about a command that has ended.
func (p *logPrinter) end(e *agboxv1.ExecStatus, x *printedExec, end *agboxv1.LogEnd) error {
	delete(p.execs, e.GetExecId()) // the colours and widths of the others stay
	if p.format == formatJSON {
		return p.jsonEnd(e.GetExecId(), x, end)
	}
	if err := p.flushExec(x); err != nil {
		return err
	}
	if end.GetNotice() != "" {
		p.app.say("%s%s", p.who(x), end.GetNotice())
	}
	if words := droppedWords(end.GetExec()); words != "" && !x.told.all(end.GetExec()) {
		p.app.say("%s%s", p.who(x), words)
	}
	return nil
}

// droppedWords says how much output was dropped; empty if none was.
func droppedWords(e *agboxv1.ExecStatus) string {
	out, errs := e.GetStdoutDroppedBytes(), e.GetStderrDroppedBytes()
	switch {
	case out == 0 && errs == 0:
		return ""
	case errs == 0:
		return fmt.Sprintf("%d bytes of stdout were dropped, because the log was full.", out)
	case out == 0:
		return fmt.Sprintf("%d bytes of stderr were dropped, because the log was full.", errs)
	}
	return fmt.Sprintf("%d bytes of stdout and %d bytes of stderr were dropped, because the log was full.", out, errs)
}

// jsonPiece is a line of -o json, with the field names of the .proto files.
type jsonPiece struct {
	ExecID string     `json:"exec_id"`
	Stream string     `json:"stream,omitempty"`
	Offset *uint64    `json:"offset,omitempty"`
	Time   *time.Time `json:"time,omitempty"`
	Data   *string    `json:"data,omitempty"`
	Base64 []byte     `json:"data_base64,omitempty"`
	// Dropped bytes are missing at Offset; there is no data then.
	Dropped uint64          `json:"dropped_bytes,omitempty"`
	End     json.RawMessage `json:"end,omitempty"`
}

func newPiece(id string, stream agboxv1.LogStream, offset uint64, at time.Time) jsonPiece {
	piece := jsonPiece{ExecID: id, Stream: "stdout", Offset: &offset}
	if stream == agboxv1.LogStream_LOG_STREAM_STDERR {
		piece.Stream = "stderr"
	}
	if !at.IsZero() {
		at = at.UTC()
		piece.Time = &at
	}
	return piece
}

// json prints a piece. It holds an incomplete character at the end until the rest
// arrives; last means that nothing more will arrive.
func (p *logPrinter) json(id string, stream agboxv1.LogStream, out *printedOutput, offset uint64, at time.Time, data []byte, last bool) error {
	if rest := out.rest; len(rest) > 0 {
		out.rest = nil
		if out.restAt+uint64(len(rest)) == offset {
			data, offset = append(rest, data...), out.restAt
		} else if err := p.json(id, stream, out, out.restAt, time.Time{}, rest, true); err != nil {
			return err
		}
	}
	if n := cutCharacter(data); n > 0 && !last {
		out.rest, out.restAt = bytes.Clone(data[len(data)-n:]), offset+uint64(len(data)-n)
		data = data[:len(data)-n]
	}
	if len(data) == 0 {
		return nil
	}
	piece := newPiece(id, stream, offset, at)
	if p.style.strip {
		data = out.ansi.filter(data)
	}
	if utf8.Valid(data) {
		text := string(data)
		piece.Data = &text
	} else {
		piece.Base64 = data
	}
	return p.jsonLine(piece)
}

// jsonRest prints held incomplete characters at the end of the output.
func (p *logPrinter) jsonRest(id string, x *printedExec) error {
	for i, stream := range []agboxv1.LogStream{agboxv1.LogStream_LOG_STREAM_STDOUT, agboxv1.LogStream_LOG_STREAM_STDERR} {
		if err := p.jsonHeld(id, stream, &x.outputs[i]); err != nil {
			return err
		}
	}
	return nil
}

// jsonHeld prints the held incomplete character of one output.
func (p *logPrinter) jsonHeld(id string, stream agboxv1.LogStream, out *printedOutput) error {
	rest := out.rest
	if len(rest) == 0 {
		return nil
	}
	out.rest = nil
	return p.json(id, stream, out, out.restAt, time.Time{}, rest, true)
}

// jsonGap prints a gap, and before it an incomplete character that it cuts off.
func (p *logPrinter) jsonGap(id string, out *printedOutput, gap client.LogItem) error {
	if err := p.jsonHeld(id, gap.Stream, out); err != nil {
		return err
	}
	piece := newPiece(id, gap.Stream, gap.Offset, gap.Time)
	piece.Dropped = gap.Dropped
	return p.jsonLine(piece)
}

func (p *logPrinter) jsonEnd(id string, x *printedExec, end *agboxv1.LogEnd) error {
	if err := p.jsonRest(id, x); err != nil {
		return err
	}
	value, err := view.JSON(end)
	if err != nil {
		return err
	}
	return p.jsonLine(jsonPiece{ExecID: id, End: value})
}

func (p *logPrinter) jsonLine(piece jsonPiece) error {
	return newJSONEncoder(p.app.stdout).Encode(piece)
}

// cutCharacter returns how many bytes at the end of data are an incomplete UTF-8
// character.
func cutCharacter(data []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(data)); n++ {
		b := data[len(data)-n]
		if utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(data[len(data)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// flushed prints held output before logs fails with err.
func flushed(p *logPrinter, err error) error {
	_ = p.flushAll() // err matters more than a failure to print
	return err
}
