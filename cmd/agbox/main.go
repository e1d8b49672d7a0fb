// Command agbox is the command line of agbox: sandboxes, the commands that run
// in them, and their output. It talks to agboxd only through package client.
package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	os.Exit(newApp().run(context.Background(), os.Args[1:]))
}

// newApp returns an app that uses the real process: its files, environment and signals.
func newApp() *app {
	signals, restore := processSignals()
	return &app{
		stdin:     os.Stdin,
		stdout:    os.Stdout,
		stderr:    os.Stderr,
		width:     terminalWidth,
		now:       time.Now,
		lookupEnv: os.LookupEnv,
		replace:   syscall.Exec,
		signals:   signals,
		restore:   restore,
		goesOn:    new(background),
		raise:     func(sig syscall.Signal) { _ = syscall.Kill(os.Getpid(), sig) },
	}
}

// processSignals returns a function that subscribes to the signals of this process.
// All subscriptions share one channel, so a signal between two parts of a command waits
// for the second part. A kind stays subscribed until the subscription that first asked
// for it ends, or until restore. restore gives the given kinds their default action,
// also for signals that are still in the channel.
func processSignals() (subscribe func(...os.Signal) (<-chan os.Signal, func()), restore func(...os.Signal)) {
	ch := make(chan os.Signal, 8)
	var mu sync.Mutex // guards held
	held := make(map[os.Signal]bool)
	restore = func(kinds ...os.Signal) {
		mu.Lock()
		defer mu.Unlock()
		for _, kind := range kinds {
			if held[kind] {
				signal.Reset(kind)
				delete(held, kind)
			}
		}
		var others []os.Signal
		for range len(ch) {
			select {
			case s := <-ch:
				if sig, ok := s.(syscall.Signal); ok && slices.Contains(kinds, s) {
					_ = syscall.Kill(os.Getpid(), sig)
				} else {
					others = append(others, s)
				}
			default: // a subscription was faster
			}
		}
		for _, s := range others {
			select {
			case ch <- s:
			default: // full, as it may be for the system
			}
		}
	}
	subscribe = func(kinds ...os.Signal) (<-chan os.Signal, func()) {
		mu.Lock()
		defer mu.Unlock()
		var own []os.Signal
		for _, kind := range kinds {
			if held[kind] || kind == syscall.SIGHUP && signal.Ignored(kind) { // nohup ignores SIGHUP on purpose
				continue
			}
			held[kind] = true
			own = append(own, kind)
			signal.Notify(ch, kind)
		}
		return ch, sync.OnceFunc(func() {
			mu.Lock()
			defer mu.Unlock()
			for _, kind := range own {
				signal.Reset(kind)
				delete(held, kind)
			}
		})
	}
	return subscribe, restore
}

// usualWidth is the assumed width, in columns, of a terminal that reports none.
const usualWidth = 80

// terminalWidth is the width of the terminal behind stderr in columns, 0 if
// there is none.
func terminalWidth() int {
	width, _, err := term.GetSize(int(os.Stderr.Fd()))
	switch {
	case err != nil:
		return 0
	case width <= 0:
		return usualWidth
	}
	return width
}
