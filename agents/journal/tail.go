package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
)

// maxBad is how many bad lines are looked at. A supervisor writes none, and each costs more
// time than the few bytes that it may have.
const maxBad = 1000

// ErrDamaged means that a journal has too many bad lines.
var ErrDamaged = fmt.Errorf("more than %d lines of the journal are no rows: %w", maxBad, errdefs.ErrDataLoss)

// Tail is a place in a journal that grows, with what the rows before it come to. It is a
// value: Read returns the place after what it read.
type Tail struct {
	Sum Summary
	// Offset is in bytes.
	Offset int64
	// Bad is the number of lines that are no rows, or may not follow the rows before them.
	Bad int
	// skipping means that the place is in a line that is too long to be a row.
	skipping bool
}

// Beginning is the place before the first row.
func Beginning() Tail { return Tail{Sum: Start()} }

// Read reads what r has, the journal from Offset on. It calls each with every row and what
// the rows come to with it; each may be nil. It reads nothing after the first MaxJournal
// bytes of the journal. A last line without an end was never acknowledged, and is read
// again next time. With an error, the place is after what was read before it.
func (t Tail) Read(r io.Reader, each func(Row, Summary)) (Tail, error) {
	return t.ReadWhile(r, func(row Row, sum Summary) bool {
		if each != nil {
			each(row, sum)
		}
		return true
	})
}

// ReadWhile is Read until each returns false; the place is then after that row.
func (t Tail) ReadWhile(r io.Reader, each func(Row, Summary) bool) (Tail, error) {
	if t.Bad > maxBad {
		return t, ErrDamaged
	}
	in := bufio.NewReaderSize(io.LimitReader(r, max(0, MaxJournal-t.Offset)), MaxRow)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			t.Offset, t.skipping = t.Offset+int64(len(line)), true
			continue
		case errors.Is(err, io.EOF):
			return t, nil
		case err != nil:
			return t, err
		}
		t.Offset += int64(len(line))
		var row Row
		next, good := t.Sum, false
		if !t.skipping && json.Unmarshal(bytes.TrimSpace(line), &row) == nil {
			next, err = t.Sum.Next(row)
			good = err == nil
		}
		t.skipping = false
		if !good {
			if t.Bad++; t.Bad > maxBad {
				return t, ErrDamaged
			}
			continue
		}
		if t.Sum = next; !each(row, next) {
			return t, nil
		}
	}
}

// LastBeat is the record of the newest beat of an incarnation, in a file of its own, which
// outlives the container. It is rewritten every heartbeat.durable of the agent.
type LastBeat struct {
	// At is in milliseconds since 1970.
	At int64 `json:"at"`
	// Lifecycle is the state at the beat.
	Lifecycle string `json:"state"`
}

// Encode returns the record as JSON.
func (b LastBeat) Encode() ([]byte, error) { return json.Marshal(b) }

// ReadLastBeat reads a record that root in the sandbox may have forged.
func ReadLastBeat(raw []byte) (b LastBeat, err error) {
	if err := json.Unmarshal(raw, &b); err != nil {
		return LastBeat{}, fmt.Errorf("the record of a beat is damaged: %w: %w", errdefs.ErrDataLoss, err)
	}
	if _, known := follows[b.Lifecycle]; b.At < 0 || b.At > maxCount || !known && b.Lifecycle != Terminated {
		return LastBeat{}, fmt.Errorf("the record of a beat has values that nobody reports: %w", errdefs.ErrDataLoss)
	}
	return b, nil
}
