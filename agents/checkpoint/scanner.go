package checkpoint

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// ErrState means that the state that an agent gave is no JSON object.
var ErrState = errors.New("the state of a checkpoint is no JSON object in UTF-8")

// maxDepth bounds how deep objects and arrays may be nested. Readers recurse.
const maxDepth = 1000

// scanner checks piece by piece that what is written to it is one JSON object in UTF-8. It
// needs as many bytes as the object is deep.
type scanner struct {
	// nest has a '{' or '[' for each object and array that is open.
	nest []byte
	want state
	// rest is what must follow of a literal, for example "ue" after "tr".
	rest string
	// hex is the number of hexadecimal digits that must follow.
	hex int
	// rune has the bytes so far of a character with several.
	rune    [utf8.UTFMax]byte
	runeLen int
	// key means that the string is the name of a member.
	key bool
	at  int64
	// digest is told what the outermost object has; nil if that does not matter.
	digest *digest
}

// state is what may follow.
type state uint8

const (
	wantObject   state = iota // the object itself
	wantValue                 // a value
	wantFirst                 // a value, or the end of the array
	wantKey                   // a name
	wantFirstKey              // a name, or the end of the object
	wantColon
	wantMore // a comma, or the end of the object or array
	inString
	inEscape
	inLiteral
	inMinus   // after "-"
	inZero    // after a leading 0
	inDigits  // in the whole part
	inPoint   // after "."
	inDecimal // after a digit of the fraction
	inE       // after "e"
	inESign   // after the sign of the exponent
	inExp     // in the exponent
	wantEnd   // only white space
)

// object reports whether all of an object was written.
func (s *scanner) object() bool { return s.want == wantEnd }

func (s *scanner) Write(p []byte) (int, error) {
	for i, c := range p {
		if !s.step(c) {
			return i, fmt.Errorf("%w: byte %d is wrong", ErrState, s.at)
		}
		s.at++
	}
	return len(p), nil
}

// step reports whether c may follow.
func (s *scanner) step(c byte) bool {
	switch s.want {
	case inString:
		return s.character(c)
	case inEscape:
		return s.escape(c)
	case inLiteral:
		return s.literal(c)
	case inMinus, inZero, inDigits, inPoint, inDecimal, inE, inESign, inExp:
		if s.number(c) {
			return true
		}
		if s.want != inZero && s.want != inDigits && s.want != inDecimal && s.want != inExp {
			return false
		}
		s.want = wantMore // c follows the number
	}
	if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
		return true
	}
	return s.structure(c)
}

// structure reads what is between strings, numbers and literals.
func (s *scanner) structure(c byte) bool {
	switch s.want {
	case wantObject:
		return c == '{' && s.open(c)
	case wantFirst, wantValue:
		if c == ']' && s.want == wantFirst {
			return s.close()
		}
		return s.value(c)
	case wantFirstKey, wantKey:
		if c == '}' && s.want == wantFirstKey {
			return s.close()
		}
		s.want, s.key = inString, true
		s.tell(c)
		return c == '"'
	case wantColon:
		s.want = wantValue
		return c == ':'
	case wantMore:
		inObject := s.nest[len(s.nest)-1] == '{'
		switch {
		case c == ',' && inObject:
			s.want = wantKey
			return true
		case c == ',':
			s.want = wantValue
			return true
		case c == '}' && inObject, c == ']' && !inObject:
			return s.close()
		}
	}
	return false
}

func (s *scanner) open(c byte) bool {
	s.want = wantFirst
	if c == '{' {
		s.want = wantFirstKey
	}
	s.nest = append(s.nest, c)
	return len(s.nest) <= maxDepth
}

func (s *scanner) close() bool {
	s.nest = s.nest[:len(s.nest)-1]
	s.want = wantMore
	if len(s.nest) == 0 {
		s.want = wantEnd
	}
	return true
}

// value begins a value.
func (s *scanner) value(c byte) bool {
	s.key = false
	s.tell(c)
	switch {
	case c == '{', c == '[':
		return s.open(c)
	case c == '"':
		s.want = inString
	case c == 't':
		s.want, s.rest = inLiteral, "true"[1:]
	case c == 'f':
		s.want, s.rest = inLiteral, "false"[1:]
	case c == 'n':
		s.want, s.rest = inLiteral, "null"[1:]
	case c == '-':
		s.want = inMinus
	case c == '0':
		s.want = inZero
	case digit(c):
		s.want = inDigits
	default:
		return false
	}
	return true
}

func (s *scanner) literal(c byte) bool {
	if c != s.rest[0] {
		return false
	}
	if s.rest = s.rest[1:]; s.rest == "" {
		s.want = wantMore
	}
	return true
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// number reports whether c goes on with a number.
func (s *scanner) number(c byte) bool {
	switch isDigit := digit(c); {
	case isDigit && s.want == inMinus && c == '0':
		s.want = inZero
	case isDigit && (s.want == inMinus || s.want == inDigits):
		s.want = inDigits
	case isDigit && (s.want == inPoint || s.want == inDecimal):
		s.want = inDecimal
	case isDigit && s.want != inZero:
		s.want = inExp
	case c == '.' && (s.want == inZero || s.want == inDigits):
		s.want = inPoint
	case (c == 'e' || c == 'E') && (s.want == inZero || s.want == inDigits || s.want == inDecimal):
		s.want = inE
	case (c == '+' || c == '-') && s.want == inE:
		s.want = inESign
	default:
		return false
	}
	return true
}

// character reads a byte of a string.
func (s *scanner) character(c byte) bool {
	if s.runeLen > 0 || c >= utf8.RuneSelf {
		s.rune[s.runeLen] = c
		s.runeLen++
		if seen := s.rune[:s.runeLen]; utf8.FullRune(seen) {
			r, size := utf8.DecodeRune(seen)
			ok := size == s.runeLen && (r != utf8.RuneError || size > 1)
			s.runeLen = 0
			return ok
		}
		return true
	}
	switch {
	case c == '"' && s.key:
		s.want = wantColon
		s.digest.end(true)
	case c == '"':
		s.want = wantMore
		s.digest.end(false)
	case c == '\\':
		s.want = inEscape
	}
	if c != '"' {
		s.digest.add(c)
	}
	return c >= ' '
}

// tell tells the digest of the first byte of a name or a value in the outermost object.
func (s *scanner) tell(c byte) {
	if len(s.nest) == 1 {
		s.digest.begin(c, s.key)
	}
}

// escape reads a byte after a backslash.
func (s *scanner) escape(c byte) bool {
	if s.hex > 0 {
		if s.hex--; s.hex == 0 {
			s.want = inString
		}
		return digit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
	}
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.want = inString
		return true
	case 'u':
		s.hex = 4
		return true
	}
	return false
}
