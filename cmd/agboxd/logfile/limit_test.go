package logfile

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// record makes a line of a sandbox at a time.
func record(at time.Time, message, sandbox string) slog.Record {
	r := slog.NewRecord(at, slog.LevelWarn, message, 0)
	r.AddAttrs(slog.String("sandbox_id", sandbox))
	return r
}

func TestAFloodOfOneSandboxIsCountedAndLeavesOthersAlone(t *testing.T) {
	var out bytes.Buffer
	h := LimitRepeats(slog.NewTextHandler(&out, nil))
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	log := func(at time.Time, message, sandbox string) {
		if err := h.WithAttrs(nil).Handle(context.Background(), record(at, message, sandbox)); err != nil {
			t.Fatal(err)
		}
	}
	for range 100_000 {
		log(now, "flood", "a")
	}
	if n := strings.Count(out.String(), "\n"); n != burst {
		t.Errorf("a flood within one second gives %d lines", n)
	}
	log(now, "flood", "b")
	log(now, "another", "a")
	if n := strings.Count(out.String(), "\n"); n != burst+2 {
		t.Error("the flood of one sandbox holds back other lines")
	}
	out.Reset()
	log(now.Add(time.Second), "flood", "a")
	log(now.Add(time.Second), "flood", "a")
	if text := out.String(); strings.Count(text, "\n") != 2 || strings.Count(text, fmt.Sprintf("suppressed=%d", 100_000-burst)) != 1 {
		t.Errorf("the next lines are %q", text)
	}
}

func TestTheNumberOfMessagesIsBounded(t *testing.T) {
	h := LimitRepeats(slog.DiscardHandler)
	for i := range 3 * maxKeys {
		_ = h.Handle(context.Background(), record(time.Now(), fmt.Sprint(i), "a"))
	}
	if n := len(h.kinds); n > maxKeys {
		t.Errorf("%d messages are remembered", n)
	}
}
