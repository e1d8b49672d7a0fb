package journal

import "time"

const (
	// MaxStack bounds the stack of an error, in bytes.
	MaxStack = 2 << 10
	// MaxRetryAfter is the longest time after which a program may ask to be tried again.
	MaxRetryAfter = 24 * time.Hour
)

// nextOfError returns the summary with one more row of the op Error.
func (s Summary) nextOfError(r Row) (Summary, error) {
	switch {
	case r.Text == "":
		return s, refuse("An error has a text that says what happened.")
	case len(r.Stack) > MaxStack || !printable(r.Stack):
		return s, refuse("A stack has at most %d bytes of UTF-8 and no control characters but line ends and tabs.", MaxStack)
	case r.RetryAfterMS > uint64(MaxRetryAfter/time.Millisecond):
		return s, refuse("A program is tried again after at most %v.", MaxRetryAfter)
	}
	s.Error, s.Stack, s.RetryAfter = r.Text, r.Stack, time.Duration(r.RetryAfterMS)*time.Millisecond
	return s, nil
}

// withoutError is the summary of a program that got on after its error.
func (s Summary) withoutError() Summary {
	s.Error, s.Stack, s.RetryAfter = "", "", 0
	return s
}
