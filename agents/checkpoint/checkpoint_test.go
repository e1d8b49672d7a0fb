package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/agbox/agbox/agents/journal"
)

func head() Head {
	return Head{
		Seq: 7, ID: "ID", Lineage: "a", Anchor: "agent-a-2", Incarnation: 2, WrittenAt: time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC),
		Kind: journal.TurnCheckpoint, Turn: 3, ResumePoint: "after the tests", Model: "m", Used: journal.Used{InputTokens: 9},
	}
}

func TestAWrittenCheckpointIsReadAsItWas(t *testing.T) {
	const state = ` {"messages": ["ä", {"b": [1.5e-3, -0, true, false, null, "\u00e4\n"]}], "loop": {}, "llm": {"model": "m"}} `
	var file bytes.Buffer
	rest := strings.NewReader(state + "next line")
	crc, size, err := Write(&file, head(), iotest.OneByteReader(rest), int64(len(state)))
	if err != nil || size != int64(file.Len()) || crc != crc32.ChecksumIEEE(file.Bytes()) {
		t.Fatalf("wrote %d bytes with checksum %x: %v", size, crc, err)
	}
	if left, _ := io.ReadAll(rest); string(left) != "next line" {
		t.Errorf("%q is left of what follows the state", left)
	}
	got, err := Parse(file.Bytes())
	want := head()
	want.Version = Version
	if err != nil || got.Head != want || strings.TrimSpace(string(got.State)) != strings.TrimSpace(state) {
		t.Errorf("read %+v: %v", got, err)
	}
	if m := got.Mark(crc, size); m.Check() != nil || Copy(io.Discard, bytes.NewReader(file.Bytes()), m) != nil {
		t.Errorf("the mark %+v does not fit", m)
	}
}

func TestAStateThatIsNoObjectIsReadToItsEnd(t *testing.T) {
	for _, state := range []string{``, ` `, `[]`, `1`, `{"a"`, `{"a":}`, `{"a":1,}`, `{} {}`, `{"a":01}`, "{\"\xff\":1}", strings.Repeat(`{"a":`, maxDepth+1)} {
		rest := strings.NewReader(state + "next")
		_, _, err := Write(io.Discard, head(), rest, int64(len(state)))
		if !errors.Is(err, ErrState) {
			t.Errorf("%.20s: %v", state, err)
		}
		if left, _ := io.ReadAll(rest); string(left) != "next" {
			t.Errorf("%.20s: %q is left", state, left)
		}
	}
	if _, _, err := Write(io.Discard, head(), strings.NewReader(`{}`), 3); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a state that ends early: %v", err)
	}
	full := errors.New("full")
	rest := strings.NewReader(`{"a":1}next`)
	if _, _, err := Write(writer{full}, head(), rest, 7); !errors.Is(err, full) || rest.Len() != 4 {
		t.Errorf("a full disk: %v, and %d bytes are left", err, rest.Len())
	}
}

type writer struct{ err error }

func (w writer) Write([]byte) (int, error) { return 0, w.err }

func TestADamagedFileIsFound(t *testing.T) {
	var file bytes.Buffer
	crc, size, err := Write(&file, head(), strings.NewReader(`{"a":1}`), 7)
	if err != nil {
		t.Fatal(err)
	}
	m := head().Mark(crc, size)
	whole := file.Bytes()
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, raw := range map[string][]byte{"truncated": whole[:size-1], "longer": append(bytes.Clone(whole), 0), "empty": nil, "flipped": flipped} {
		if err := Copy(io.Discard, bytes.NewReader(raw), m); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	huge := *m
	huge.Bytes = MaxFile + 1
	if err := Copy(io.Discard, endless{t}, &huge); !errors.Is(err, ErrMismatch) {
		t.Errorf("a mark of a huge file: %v", err)
	}
}

// endless must not be read.
type endless struct{ t *testing.T }

func (e endless) Read([]byte) (int, error) { e.t.Error("the file was read"); return 0, io.EOF }

func TestVersion1IsUpgraded(t *testing.T) {
	old := `{"lineage_id":"a","anchor_id":"x","written_at":"2025-01-02T03:04:05Z","model":"m","llm":{"t":1},"usage":{"input_tokens":5},"messages":["hi"],"loop":{"tools":[]}}`
	for _, raw := range []string{old, strings.Replace(old, "{", `{"version":1,`, 1)} {
		got, err := Parse([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		var state map[string]json.RawMessage
		if err := json.Unmarshal(got.State, &state); err != nil {
			t.Fatal(err)
		}
		if got.Version != 2 || got.Lineage != "a" || got.Anchor != "x" || got.Model != "m" || got.Used.InputTokens != 5 || got.Kind != journal.TurnCheckpoint ||
			len(state) != 3 || string(state["messages"]) != `["hi"]` {
			t.Errorf("upgraded to %+v", got)
		}
	}
	for _, raw := range []string{`{"version":3,"state":{}}`, `{"version":0}`, `{"version":"2"}`, `null`, `7`, `{"version":2}`, `{"version":2,"state":[]}`} {
		if got, err := Parse([]byte(raw)); err == nil {
			t.Errorf("%s was read as %+v", raw, got)
		}
	}
}

// FuzzScanner compares the scanner with encoding/json.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":[1,-2.5e+10,"x\u0041\\"],"b":{"c":null}}`, `{"a":tru}`, `{"a":1.}`, `{"a":-}`, `{"a":1e}`, `{"a":0.1E-7 }`, "{\"\x80\":0}", "{\"\xe4\":0}", `{"\ud800":0}`,
		`{"a":"` + "\u00e4\U0001f600" + `"}`, "{\"a\":\"\t\"}", `{,}`, `{"a":[,]}`, `{"a":[1,]}`, `{"a":[]}`, "\ufeff{}", "{\"a\":\"\ufffd\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := new(scanner)
		_, err := io.Copy(s, iotest.OneByteReader(bytes.NewReader(raw)))
		got := err == nil && s.object()
		want := json.Valid(raw) && utf8.Valid(raw) && bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{"))
		if got != want && bytes.Count(raw, []byte("["))+bytes.Count(raw, []byte("{")) < maxDepth {
			t.Errorf("%q: %v, want %v", raw, got, want)
		}
	})
}
