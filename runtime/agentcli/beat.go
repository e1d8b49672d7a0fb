package agentcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxEvery bounds the time between two beats.
const maxEvery = time.Hour

// parseEvery reads the arguments of "beat --every".
func parseEvery(args []string) (time.Duration, error) {
	if len(args) != 2 || args[0] != "--every" {
		return 0, errors.New("beat takes only --every DURATION, as in \"beat --every 15s\"")
	}
	every, err := time.ParseDuration(args[1])
	if err != nil || every < time.Millisecond || every > maxEvery {
		return 0, fmt.Errorf("%q is no time between two beats: give one like 15s, at most %v", args[1], maxEvery)
	}
	return every, nil
}

// beater sends beats for a program that has no timer. That only shows that the program has
// not ended.
type beater struct {
	socket, token string
	every         time.Duration
	// parent returns the id of the parent process.
	parent func() int
}

// run sends beats until the parent ends, the incarnation ends or ctx does, and returns the
// exit code. It goes on if the supervisor cannot be asked: its socket stays as long as the
// container.
func (b beater) run(ctx context.Context, stderr io.Writer) int {
	ticker := time.NewTicker(b.every)
	defer ticker.Stop()
	parent, sent := b.parent(), false
	for b.parent() == parent {
		got, _, err := ask(ctx, b.socket, map[string]any{"op": "beat", "token": b.token}, nil)
		switch {
		case err != nil:
		case got.OK:
			sent = true
		case sent && got.Error.Code == "WRONG_TOKEN": // the incarnation has ended
			return exitOK
		default:
			_, _ = fmt.Fprintln(stderr, "agbox-agent:", got.Error.Message)
			return exitCode(got.Error.Code)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return exitOK
		}
	}
	return exitOK
}

// beats makes a beater of the command line.
func beats(args []string, socket, token string) (beater, error) {
	every, err := parseEvery(args)
	return beater{socket: socket, token: token, every: every, parent: os.Getppid}, err
}
