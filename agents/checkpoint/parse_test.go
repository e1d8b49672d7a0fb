package checkpoint

import (
	"bytes"
	"encoding/json"
	"hash/crc32"
	"io"
	"testing"
)

// FuzzParse reads files that root in a sandbox, or a damaged disk, may have changed. Whatever
// is read has a state, and a copy with its mark is accepted and no other.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"version":2}`, `{"version":2,"state":{}}`, `{"version":2,"state":null}`, `{"version":3,"state":{}}`, `{"version":-1}`, `{"version":1e9}`,
		`{"version":2,"seq":7,"checkpoint_id":"i","lineage_id":"a","anchor_id":"x","incarnation":2,"written_at":"2026-01-02T03:04:05Z","kind":"turn","turn":3,"step":9,"usage":{"input_tokens":5},"state":{"a":[1]}}`,
		`{"version":2,"seq":-7,"state":{}}`, `{"version":2,"written_at":"yesterday","state":{}}`, `{"version":2,"usage":{"input_tokens":1e40},"state":{}}`,
		`{"lineage_id":"a","messages":["hi"],"loop":{"tools":[]}}`, `{"version":1,"state":{"messages":[]}}`, `{"version":2,"version":1,"state":{}}`, `{"version":2,"state":{},"state":[]}`,
		"{\"version\":2,\"state\":{\"\xff\":0}}", "\ufeff{\"version\":2,\"state\":{}}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := Parse(raw)
		if err != nil {
			return
		}
		var state map[string]json.RawMessage
		if err := json.Unmarshal(got.State, &state); err != nil || state == nil {
			t.Fatalf("%q has the state %q: %v", raw, got.State, err)
		}
		if got.Version != Version {
			t.Errorf("%q is of version %d; want it upgraded", raw, got.Version)
		}
		current, err := Upgrade(raw)
		if err != nil {
			t.Fatalf("%q is read and cannot be upgraded: %v", raw, err)
		}
		if again, err := Upgrade(current); err != nil || !bytes.Equal(again, current) {
			t.Errorf("%q upgraded twice is %q: %v", raw, again, err)
		}
		mark := got.Mark(crc32.ChecksumIEEE(raw), int64(len(raw)))
		if err := Copy(io.Discard, bytes.NewReader(raw), mark); err != nil {
			t.Errorf("%q does not fit its own mark: %v", raw, err)
		}
		flipped := bytes.Clone(raw)
		flipped[len(flipped)/2] ^= 1
		if Copy(io.Discard, bytes.NewReader(flipped), mark) == nil || Copy(io.Discard, bytes.NewReader(raw[:len(raw)-1]), mark) == nil {
			t.Errorf("%q: a damaged copy fits the mark", raw)
		}
	})
}
