package logs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"time"
)

const (
	// Mask is what the log has instead of a value.
	Mask = "***"
	// minValue is the length from which a value is replaced, in bytes. A shorter one, such
	// as "true", would be found in output that has nothing to do with it.
	minValue = 8
	// holdTime is how long a stream must pause until its end is written, which is held back
	// because it may be the beginning of a value. A terminal that echoes what is typed must not
	// be late for people. A byte is held back for at most the length of a value times this.
	holdTime = 50 * time.Millisecond

	// gram is how many bytes are looked up at once.
	gram = 4
	// maxWindow bounds the distance of lookups, and so the memory for them.
	maxWindow = 64
	// hashBits is the logarithm of how many bytes the table of hashes has.
	hashBits = 13

	// In block bytes or more, the rarest byte of each value is looked for first if the values are
	// few and one of them is short: the grams of a value of 8 bytes are looked up every 5 bytes.
	// The first samples bytes tell which one is rare.
	block, samples = 4096, 512
	fewValues      = 4
	shortWindow    = 16
)

// Redactor finds values in output. It may be used by several Writers at once.
//
// It reads a few bytes of the output only: each value has at least window bytes, so one of its
// first grams begins at a multiple of window-gram+1. That is several times as fast as to look
// for the values one after the other, and independent of their number.
type Redactor struct {
	values  []string
	longest int
	window  int
	// may tells of a hash whether a gram has it.
	may   [1 << hashBits]uint8
	grams []gramOf
	// inside are the bytes of which all but the last byte of values consist.
	inside [256]bool
}

// gramOf says that a value has a gram at an offset.
type gramOf struct {
	gram          uint32
	value, offset int
}

// NewRedactor returns a redactor of values. Each line of a value counts as one of its own,
// because terminals change the ends of lines. Lines of less than 8 bytes are left out; if
// none is left, the result is nil.
func NewRedactor(values []string) *Redactor {
	r := &Redactor{window: maxWindow}
	for _, v := range values {
		for line := range strings.FieldsFuncSeq(v, func(c rune) bool { return c == '\n' || c == '\r' }) {
			if len(line) >= minValue {
				r.values = append(r.values, line)
			}
		}
	}
	slices.Sort(r.values)
	r.values = slices.Compact(r.values)
	if len(r.values) == 0 {
		return nil
	}
	for _, v := range r.values {
		r.longest, r.window = max(r.longest, len(v)), min(r.window, len(v))
	}
	for i, v := range r.values {
		for offset := range r.window - gram + 1 {
			g := binary.LittleEndian.Uint32([]byte(v[offset : offset+gram]))
			r.may[hash(g)] = 1
			r.grams = append(r.grams, gramOf{g, i, offset})
		}
		for _, c := range []byte(v[:len(v)-1]) {
			r.inside[c] = true
		}
	}
	slices.SortFunc(r.grams, func(a, b gramOf) int { return cmp.Compare(a.gram, b.gram) })
	return r
}

func hash(g uint32) uint32 { return g * 0x9E3779B1 >> (32 - hashBits) }

// span is a part of some bytes.
type span struct{ start, end int }

// find returns where the values are in p, and from where on p may be the beginning of a value.
// Of values that overlap it takes the first, and the longest of those that begin at one place.
// With last, nothing follows p.
func (r *Redactor) find(p []byte, last bool) (found []span, rest int) {
	from := 0
	if rest = len(p); !last {
		rest = r.beginning(p, 0)
	}
	if r.lacks(p) {
		return nil, rest
	}
	for {
		s := r.next(p, from)
		if s.end == 0 || s.start >= rest {
			return found, rest
		}
		found = append(found, s)
		if from = s.end; from > rest {
			rest = r.beginning(p, from)
		}
	}
}

// lacks reports whether a quick look shows that p has no whole value. It gives up if the byte that
// it looks for is not rare.
func (r *Redactor) lacks(p []byte) bool {
	if len(p) < block || len(r.values) > fewValues || r.window >= shortWindow {
		return false
	}
	var count [256]uint16
	for _, c := range p[:samples] {
		count[c]++
	}
	hits := len(p) / 64
	for _, v := range r.values {
		rare := 0
		for i := range len(v) {
			if count[v[i]] < count[v[rare]] {
				rare = i
			}
		}
		for at := rare; at < len(p); at++ {
			i := bytes.IndexByte(p[at:], v[rare])
			if i < 0 {
				break
			}
			at += i
			start := at - rare
			if hits--; hits < 0 || len(p)-start >= len(v) && string(p[start:start+len(v)]) == v {
				return false
			}
		}
	}
	return true
}

// Replace returns p, which is a text of its own, with Mask for the values. r may be nil.
func (r *Redactor) Replace(p []byte) []byte { return r.ReplacePart(p, false, false) }

// ReplacePart is Replace for a part of a longer text: it leaves out what may be the end of a value
// if there is text before, and what may be the beginning of one if there is text after.
func (r *Redactor) ReplacePart(p []byte, before, after bool) []byte {
	if r == nil {
		return p
	}
	e := edit{whole: p}
	e.found, e.rest = r.find(p, !after)
	out := e.output()
	if before {
		out = out[min(len(out), r.longest-1):]
	}
	return out
}

// next returns the first value in p that begins at from or later.
func (r *Redactor) next(p []byte, from int) span {
	step := r.window - gram + 1
	for at := from; at+gram <= len(p); at += step {
		at = r.skip(p, at, step)
		if at+gram > len(p) {
			break
		}
		if g := binary.LittleEndian.Uint32(p[at:]); r.may[hash(g)] != 0 {
			if s := r.around(p, from, at, g); s.end > 0 {
				return s
			}
		}
	}
	return span{}
}

// skip returns a place up to which no gram is of a value. It looks at four at once, with one
// branch, because nearly all of them are of none.
func (r *Redactor) skip(p []byte, at, step int) int {
	for ; at+3*step+gram <= len(p); at += 4 * step {
		q := p[at : at+3*step+gram]
		a, b := binary.LittleEndian.Uint32(q), binary.LittleEndian.Uint32(q[step:])
		c, d := binary.LittleEndian.Uint32(q[2*step:]), binary.LittleEndian.Uint32(q[3*step:])
		if r.may[hash(a)]|r.may[hash(b)]|r.may[hash(c)]|r.may[hash(d)] != 0 {
			break
		}
	}
	return at
}

// around returns the first value that begins at from or later and has the gram at a place.
func (r *Redactor) around(p []byte, from, at int, g uint32) (first span) {
	i, _ := slices.BinarySearchFunc(r.grams, g, func(x gramOf, g uint32) int { return cmp.Compare(x.gram, g) })
	for ; i < len(r.grams) && r.grams[i].gram == g; i++ {
		v, start := r.values[r.grams[i].value], at-r.grams[i].offset
		if start < from || len(p)-start < len(v) || string(p[start:start+len(v)]) != v {
			continue
		}
		if end := start + len(v); first.end == 0 || start < first.start || start == first.start && end > first.end {
			first = span{start, end}
		}
	}
	return first
}

// beginning returns the first place, from or later, such that what p has from there on is the
// beginning of a value but no whole one of its own; the length of p if there is none.
func (r *Redactor) beginning(p []byte, from int) int {
	best := len(p)
	if best == from || !r.inside[p[best-1]] {
		return best
	}
	for _, v := range r.values {
		for at := max(from, len(p)-len(v)+1); at < best; at++ {
			i := bytes.IndexByte(p[at:best], v[0])
			if i < 0 {
				break
			}
			if at += i; string(p[at:]) == v[:len(p)-at] {
				best = at
			}
		}
	}
	return best
}

// edit changes the output of one stream.
type edit struct {
	whole []byte
	found []span
	// rest is where that begins which is held back.
	rest int

	// read is how much of whole the runs had until now, and passed how much output they have.
	read, passed int
	// removed counts the bytes that output lacks because of the first done values.
	removed, done int
}

// output returns what is written.
func (e *edit) output() []byte {
	if len(e.found) == 0 {
		return e.whole[:e.rest]
	}
	out, from := make([]byte, 0, e.rest), 0
	for _, s := range e.found {
		out = append(append(out, e.whole[from:s.start]...), Mask...)
		from = s.end
	}
	return append(out, e.whole[from:max(from, e.rest)]...)
}

// pass returns how much output a run has that had n bytes. A value belongs to the run in
// which it ends.
func (e *edit) pass(n int) int {
	e.read += n
	at := min(e.read, e.rest)
	for ; e.done < len(e.found) && e.found[e.done].end <= at; e.done++ {
		s := e.found[e.done]
		e.removed += s.end - s.start - len(Mask)
	}
	if e.done < len(e.found) {
		at = min(at, e.found[e.done].start)
	}
	n = at - e.removed - e.passed
	e.passed += n
	return n
}
