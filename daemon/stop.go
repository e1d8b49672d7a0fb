package daemon

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// stopSignals are the signals that stop a daemon: SIGTERM and SIGINT end ctx.
type stopSignals struct {
	ctx    context.Context
	forget context.CancelFunc
	// caught has signals that may not have ended ctx yet.
	caught chan os.Signal
}

// catchStop catches the signals until release.
func catchStop(parent context.Context) *stopSignals {
	s := &stopSignals{caught: make(chan os.Signal, 1)}
	signal.Notify(s.caught, syscall.SIGTERM, syscall.SIGINT)
	s.ctx, s.forget = signal.NotifyContext(parent, syscall.SIGTERM, syscall.SIGINT)
	return s
}

// release reports whether a signal was caught. Later signals end the process, as by
// default, so no signal is lost in between.
func (s *stopSignals) release() (caught bool) {
	s.forget()
	signal.Stop(s.caught) // when it returns, all caught signals are in the channel
	return len(s.caught) > 0
}
