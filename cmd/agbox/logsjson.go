package main

import (
	"bytes"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
