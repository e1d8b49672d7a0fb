package main

import (
	"bytes"
	"strings"
)

// defaultDetachKeys are docker's.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseDetachKeys reads keys such as ctrl-p,ctrl-q or ctrl-],d; empty means none.
func parseDetachKeys(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	var keys []byte
	for word := range strings.SplitSeq(text, ",") {
		key, ok := parseKey(word)
		if !ok {
			return nil, usagef("%q is not a key. Separate keys with commas, as in %s; a key is one character, or ctrl- and a letter or one of @ [ \\ ] ^ _.", word, defaultDetachKeys)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func parseKey(word string) (byte, bool) {
	if len(word) == 1 {
		return word[0], word[0] < 0x80
	}
	rest, ok := strings.CutPrefix(strings.ToLower(word), "ctrl-")
	switch {
	case !ok || len(rest) != 1:
		return 0, false
	case rest[0] >= 'a' && rest[0] <= 'z', strings.ContainsAny(rest, `@[\]^_`):
		return rest[0] & 0x1f, true
	}
	return 0, false
}

// detachFilter finds the detach keys in typed input. It holds back the first keys of the
// sequence until the next key shows whether the sequence continues.
//
// The proxy of github.com/moby/term is not used: it misses the keys if the first is
// typed twice (ctrl-p ctrl-p ctrl-q), and it is a reader that must own the terminal.
type detachFilter struct {
	keys []byte
	held []byte
}

// take returns the bytes that go to the command, and whether the detach keys followed.
func (f *detachFilter) take(typed []byte) (out []byte, detach bool) {
	if len(f.keys) == 0 {
		return typed, false
	}
	for _, b := range typed {
		f.held = append(f.held, b)
		for !bytes.HasPrefix(f.keys, f.held) {
			out = append(out, f.held[0])
			f.held = f.held[1:]
		}
		if len(f.held) == len(f.keys) {
			f.held = nil
			return out, true
		}
	}
	return out, false
}
