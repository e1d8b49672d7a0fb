package checkpoint

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/agbox/agbox/agents/journal"
)

const goodDigest = `{"more": {"resolution_strategy": 5}, "checkpoint_id": "c", "resume_point": "STEP_4", "context": {"context": []}, "intent_backlog": [{}], "resolution_strategy": "MERGE"}`

func writeDigest(state string) error {
	h := head()
	h.Kind = journal.PauseCheckpoint
	_, _, err := Write(io.Discard, h, iotest.OneByteReader(strings.NewReader(state)), int64(len(state)))
	return err
}

func TestTheDigestOfAPauseHasItsFiveKeys(t *testing.T) {
	if err := writeDigest(goodDigest); err != nil {
		t.Errorf("a good digest: %v", err)
	}
	for name, change := range map[string][2]string{
		"no checkpoint_id":         {`"checkpoint_id": "c", `, ``},
		"a number as id":           {`"c"`, `7`},
		"no resume_point":          {`"resume_point"`, `"resume"`},
		"null as context":          {`{"context": []}`, `null`},
		"an object as backlog":     {`[{}]`, `{}`},
		"no strategy":              {`"resolution_strategy": "MERGE"`, `"x": "MERGE"`},
		"an unknown strategy":      {`MERGE`, `FLEE`},
		"a strategy that is long":  {`MERGE`, `MERGE` + strings.Repeat("x", 2*maxDigestText)},
		"a key that is too deep":   {`"intent_backlog": [{}]`, `"a": {"intent_backlog": []}`},
		"a second, other strategy": {`"MERGE"}`, `"MERGE", "resolution_strategy": null}`},
	} {
		state := strings.Replace(goodDigest, change[0], change[1], 1)
		if state == goodDigest {
			t.Fatalf("%s changes nothing", name)
		}
		if err := writeDigest(state); !errors.Is(err, ErrDigest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := writeDigest(`{`); !errors.Is(err, ErrState) {
		t.Errorf("a digest that is cut off: %v", err)
	}
	var file bytes.Buffer
	if _, _, err := Write(&file, head(), strings.NewReader(`{}`), 2); err != nil {
		t.Errorf("a checkpoint of another kind: %v", err)
	}
}
