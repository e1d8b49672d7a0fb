package logs

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// heldModel is what the log of an exec with secrets must have, told from what was written
// alone: a pause of a stream, or a flush, ends a text, and in each text the values are masked.
type heldModel struct {
	values []string
	done   [2]string
	text   [2]string
	last   [2]time.Time
}

func (m *heldModel) write(i int, now time.Time, p string) {
	m.text[i] += p
	m.last[i] = now
}

func (m *heldModel) pause(now time.Time) {
	for i := range m.text {
		if now.Sub(m.last[i]) >= holdTime {
			m.end(i)
		}
	}
}

func (m *heldModel) end(i int) {
	m.done[i] += masked(m.text[i], m.values...)
	m.text[i] = ""
}

// history is one run of the model against a log.
type history struct {
	*testing.T
	rng   *rand.Rand
	model heldModel
	dir   *Dir
	log   *Writer
	// got is what a reader got that connected anew several times, and at is its cursor.
	got [2]string
	at  Cursor
}

// secretive returns output that often is a part of a value, or of several.
func (h *history) secretive() (p string) {
	texts := append([]string{"x\n", "prompt: s", "0123"}, h.model.values...)
	for range 1 + h.rng.IntN(3) {
		from := texts[h.rng.IntN(len(texts))]
		a := h.rng.IntN(len(from))
		p += from[a : a+1+h.rng.IntN(len(from)-a)]
		if h.rng.IntN(2) == 0 {
			p += from
		}
	}
	return p
}

// read returns the output after a cursor and the next cursor.
func (h *history) read(at Cursor, finished bool) (got [2]string, next Cursor) {
	r := open(h, h.dir, "e", at)
	if finished {
		r.Finish()
	}
	var newest time.Time
	buf := make([]byte, 1+h.rng.IntN(40))
	for {
		c, err := r.Next(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		must(h, err)
		if c.Time.Before(newest) {
			h.Errorf("output of %v comes after output of %v, so a search by time would miss it", c.Time, newest)
		}
		newest = c.Time
		got[c.Stream-Stdout] += string(c.Data)
	}
	if r.Notice() != "" {
		h.Errorf("notice %q", r.Notice())
	}
	must(h, r.Close())
	return got, r.Cursor()
}

// resume reads on as a client does that connects anew.
func (h *history) resume(finished bool) {
	got, next := h.read(h.at, finished)
	h.got[0], h.got[1], h.at = h.got[0]+got[0], h.got[1]+got[1], next
}

func (h *history) step() {
	switch h.rng.IntN(10) {
	case 0, 1, 2:
		pauses := []time.Duration{holdTime / 5, holdTime / 2, holdTime - 1, holdTime}
		time.Sleep(pauses[h.rng.IntN(len(pauses))])
		synctest.Wait()
		h.model.pause(time.Now())
	case 3:
		h.log.Flush()
		h.model.end(0)
		h.model.end(1)
	case 4:
		h.resume(false)
	default:
		var pieces []piece
		for range 1 + h.rng.IntN(4) {
			p := piece{Stdout + Stream(h.rng.IntN(2)), h.secretive()}
			pieces = append(pieces, p)
			h.model.write(int(p.stream-Stdout), time.Now(), p.data)
		}
		stdout, stderr, runs := layOut(pieces)
		h.log.WriteRuns(time.Now(), stdout, stderr, runs)
	}
}

// end compares what is in the log, and what a client got that connected anew, with the model.
func (h *history) end(limit uint64) {
	must(h, h.log.Close())
	h.model.end(0)
	h.model.end(1)
	h.resume(true)
	whole, _ := h.read(Cursor{}, true)
	counts := h.log.Counts()
	for i, n := range [2][2]uint64{{counts.Stdout, counts.StdoutDropped}, {counts.Stderr, counts.StderrDropped}} {
		want := h.model.done[i]
		if limit > 0 {
			want = want[:min(len(want), int(limit))]
		}
		if whole[i] != want || h.got[i] != want {
			h.Errorf("stream %d has\n%q\nwith new connections\n%q\nnot\n%q", i, whole[i], h.got[i], want)
		}
		if n[0] != uint64(len(want)) || n[0]+n[1] != uint64(len(h.model.done[i])) {
			h.Errorf("stream %d: %d bytes are counted and %d dropped of %d", i, n[0], n[1], len(h.model.done[i]))
		}
	}
}

func TestRedactedLogsFollowTheModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := openDir(t)
		for seed := range uint64(500) {
			h := &history{T: t, rng: rand.New(rand.NewPCG(seed, 0)), dir: d}
			h.model.values = []string{token, password, other, "aaaaaaaa", "aaaaaaaab"}
			opt := testOptions
			opt.Redactor = NewRedactor(h.model.values)
			opt.MaxBytes = []uint64{0, 0, 7, 60}[h.rng.IntN(4)]
			h.log = create(t, d, "e", opt)
			for range 1 + h.rng.IntN(25) {
				h.step()
			}
			h.end(opt.MaxBytes)
			must(t, d.Remove(t.Context(), "e"))
			if t.Failed() {
				t.Fatalf("with seed %d", seed)
			}
		}
	})
}
