package agentcli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/agbox/agbox/agents/checkpoint"
)

const (
	// hookLimit is how long the context hook may run.
	hookLimit = 10 * time.Second
	// maxContext is how much it may print, in bytes.
	maxContext = 1 << 20
	// maxWork bounds the file with the work, in bytes. It has at most 64 KiB.
	maxWork = 1 << 20
)

// contextHook runs the context hook of an agent.
type contextHook struct {
	limit  time.Duration
	stderr io.Writer
}

// asked is what the hook gets on standard input.
type asked struct {
	// Work is what the agent has to do, Checkpoint what it goes on from. Both may be null.
	Work       *string          `json:"work"`
	Checkpoint *checkpoint.File `json:"checkpoint"`
}

// context asks the hook, if there is one: a JSON array with its program and arguments.
func (h *hydrated) context(ctx context.Context, hook contextHook, command string) error {
	if command == "" {
		return nil
	}
	var words []string
	if err := json.Unmarshal([]byte(command), &words); err != nil || len(words) == 0 {
		return errors.New("AGBOX_CONTEXT_HOOK is no command")
	}
	var question asked
	if h.Checkpoint != nil {
		question.Checkpoint = &checkpoint.File{Head: *h.Checkpoint, State: h.State}
	}
	if h.Work != "" {
		raw, err := readUpTo(h.Work, maxWork)
		if err != nil {
			return err
		}
		work := string(raw)
		question.Work = &work
	}
	input, err := json.Marshal(question)
	if err != nil {
		return err
	}
	h.Context, err = hook.run(ctx, words, input)
	return err
}

// run returns what the hook prints. It kills the hook, with its process group, when it takes
// too long or prints too much.
func (c contextHook) run(ctx context.Context, words []string, input []byte) (string, error) {
	ctx, tooMuch := context.WithCancelCause(ctx)
	defer tooMuch(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, c.limit, fmt.Errorf("it takes longer than %v", c.limit))
	defer cancel()
	out := &bounded{max: maxContext, full: func() { tooMuch(fmt.Errorf("it prints more than %d bytes", maxContext)) }}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...) //nolint:gosec // the agent's own command
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), out, c.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // what it has started may have left its group and keep its output open
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil && !errors.Is(err, syscall.EPIPE): // it need not read its input
		return "", err
	}
	return string(out.kept), nil
}

// bounded keeps what is written to it. It calls full instead of keeping more than max bytes.
type bounded struct {
	kept []byte
	max  int
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.kept)+len(p) > b.max {
		b.full()
		return 0, io.ErrShortWrite
	}
	b.kept = append(b.kept, p...)
	return len(p), nil
}
