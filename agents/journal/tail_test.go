package journal

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"
)

func FuzzReadLastBeat(f *testing.F) {
	for _, seed := range []string{`{"at":1700000000000,"state":"READY"}   `, `{"at":-1,"state":"READY"}`, `{"at":1,"state":"A"}`, "\x00", `{}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := ReadLastBeat(raw)
		if err != nil {
			if !errors.Is(err, errdefs.ErrDataLoss) || b != (LastBeat{}) && b.At >= 0 && b.At <= maxCount && b.Lifecycle == Ready {
				t.Fatalf("%q gives %+v, %v", raw, b, err)
			}
			return
		}
		again, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ReadLastBeat(again); err != nil || got != b {
			t.Fatalf("%s became %+v, %v", again, got, err)
		}
	})
}
