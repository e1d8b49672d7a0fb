package checkpoint

import (
	"errors"
	"fmt"
)

// digestKeys are the members that the digest of a pause must have, with what their values
// begin with: a string, an object or an array. Nobody but the agent reads their content.
var digestKeys = []struct {
	name string
	kind byte
}{
	{"checkpoint_id", '"'}, {"resume_point", '"'}, {"context", '{'}, {"intent_backlog", '['}, {"resolution_strategy", '"'},
}

// Strategies are what the digest of a pause can have as its resolution_strategy.
var Strategies = []string{"RETRY", "ABORT", "MERGE"}

// ErrDigest means that the state of a checkpoint of kind pause lacks what the digest of a
// pause must have.
var ErrDigest = errors.New("the state is no digest of a pause")

// digest watches a scanner and collects what the outermost object has of digestKeys. Names
// and strategies count only if they are written without escapes.
type digest struct {
	// text has the bytes of the current string, at most as many as any of them has.
	text    []byte
	collect bool
	// name is the newest name in the outermost object.
	name string
	// kinds has what the values begin with, by name.
	kinds    map[string]byte
	strategy string
}

// maxDigestText is longer than every name and strategy.
const maxDigestText = 32

// begin is told of the first byte of a value or a name in the outermost object.
func (d *digest) begin(c byte, key bool) {
	if d == nil {
		return
	}
	d.text, d.collect = d.text[:0], c == '"'
	if !key {
		d.kinds[d.name] = c
	}
}

// add is told of a byte of a string.
func (d *digest) add(c byte) {
	if d != nil && d.collect && len(d.text) < maxDigestText {
		d.text = append(d.text, c)
	}
}

// end is told that a string has ended.
func (d *digest) end(key bool) {
	switch {
	case d == nil || !d.collect:
		return
	case key:
		d.name = known(string(d.text))
	case d.name == "resolution_strategy":
		d.strategy = string(d.text)
	}
	d.collect = false
}

// known returns the name if it is one of digestKeys, so that the others need no memory.
func known(name string) string {
	for _, key := range digestKeys {
		if key.name == name {
			return name
		}
	}
	return ""
}

// check returns an error that wraps ErrDigest if a member is missing or has another type.
func (d *digest) check() error {
	if d == nil {
		return nil
	}
	words := map[byte]string{'"': "a string", '{': "an object", '[': "an array"}
	for _, key := range digestKeys {
		if got := d.kinds[key.name]; got != key.kind {
			return fmt.Errorf("%w: %s must be %s", ErrDigest, key.name, words[key.kind])
		}
	}
	for _, s := range Strategies {
		if d.strategy == s {
			return nil
		}
	}
	return fmt.Errorf("%w: resolution_strategy must be one of %v, not %.32q", ErrDigest, Strategies, d.strategy)
}
