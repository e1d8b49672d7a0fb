// This file keeps a log from being flooded: what a sandbox does can make the
// daemon log the same line as often as the sandbox likes.

package logfile

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// burst is how many lines with the same message of the same sandbox are written
	// within one second.
	burst = 10
	// maxKeys bounds the remembered messages. Beyond it, the counts begin anew.
	maxKeys = 4096
	// Suppressed is the key of the number of lines that were left out since the last
	// line with the same message of the same sandbox.
	Suppressed = "suppressed"
	// sandboxKey is the key under which the daemon logs a sandbox.
	sandboxKey = "sandbox_id"
)

// RepeatLimiter passes records on to another handler, at most burst of a kind in a second. The
// next record of that kind says how many were left out. The kind is the level, the
// message and the sandbox.
type RepeatLimiter struct {
	slog.Handler
	*state
}

type state struct {
	mu    sync.Mutex // guards kinds
	kinds map[kind]*count
}

type kind struct {
	level            slog.Level
	message, sandbox string
}

type count struct {
	second time.Time
	lines  int
	// left is the number of lines left out since the last one written.
	left int
}

// LimitRepeats returns a Handler for next.
func LimitRepeats(next slog.Handler) RepeatLimiter {
	return RepeatLimiter{Handler: next, state: &state{kinds: make(map[kind]*count)}}
}

// Handle implements slog.Handler.
func (h RepeatLimiter) Handle(ctx context.Context, r slog.Record) error {
	k := kind{level: r.Level, message: r.Message}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == sandboxKey {
			k.sandbox = a.Value.String()
		}
		return true
	})
	left, write := h.take(k, r.Time)
	if !write {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int(Suppressed, left))
	}
	return h.Handler.Handle(ctx, r)
}

// take counts one record. It returns whether to write it and how many were left out.
func (s *state) take(k kind, now time.Time) (left int, write bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.kinds[k]
	if c == nil {
		if len(s.kinds) >= maxKeys {
			clear(s.kinds)
		}
		c = new(count)
		s.kinds[k] = c
	}
	if second := now.Truncate(time.Second); !second.Equal(c.second) {
		c.second, c.lines = second, 0
	}
	if c.lines >= burst {
		c.left++
		return 0, false
	}
	c.lines++
	left, c.left = c.left, 0
	return left, true
}

// WithAttrs implements slog.Handler.
func (h RepeatLimiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return RepeatLimiter{Handler: h.Handler.WithAttrs(attrs), state: h.state}
}

// WithGroup implements slog.Handler.
func (h RepeatLimiter) WithGroup(name string) slog.Handler {
	return RepeatLimiter{Handler: h.Handler.WithGroup(name), state: h.state}
}
