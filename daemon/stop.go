package daemon

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// stopSignals are caught for a daemon: SIGTERM and SIGINT end ctx.
type stopSignals struct {
	ctx    context.Context
	forget context.CancelFunc
	// caught has what ctx may not show yet.
	caught chan os.Signal
}

// catchStop catches the signals until release.
func catchStop(parent context.Context) *stopSignals {
	s := &stopSignals{caught: make(chan os.Signal, 1)}
	signal.Notify(s.caught, syscall.SIGTERM, syscall.SIGINT)
	s.ctx, s.forget = signal.NotifyContext(parent, syscall.SIGTERM, syscall.SIGINT)
	return s
}

// release tells whether a signal was caught; those after it end the process, as
// they do by default. So none is lost in between.
func (s *stopSignals) release() (caught bool) {
	s.forget()
	signal.Stop(s.caught) // returns when all that was caught is in the channel
	return len(s.caught) > 0
}
