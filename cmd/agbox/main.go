// Command agbox is the command line of agbox: sandboxes, the commands that run
// in them, and their output. It speaks with agboxd through package client only.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	os.Exit(newApp().run(context.Background(), os.Args[1:]))
}

// newApp ties the program to the process it runs in.
func newApp() *app {
	return &app{
		stdin:     os.Stdin,
		stdout:    os.Stdout,
		stderr:    os.Stderr,
		width:     terminalWidth,
		now:       time.Now,
		lookupEnv: os.LookupEnv,
		replace:   syscall.Exec,
		signals: func(kinds ...os.Signal) (<-chan os.Signal, func()) {
			ch := make(chan os.Signal, 8)
			signal.Notify(ch, kinds...)
			return ch, func() { signal.Stop(ch) }
		},
	}
}

// usualWidth is the width of a terminal since there are terminals.
const usualWidth = 80

// terminalWidth is the width of the terminal behind stderr in columns, 0 if
// there is none.
func terminalWidth() int {
	width, _, err := term.GetSize(int(os.Stderr.Fd()))
	switch {
	case err != nil:
		return 0
	case width <= 0:
		return usualWidth // a terminal that does not know its size
	}
	return width
}
