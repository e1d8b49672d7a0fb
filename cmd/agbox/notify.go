package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// notifyBound is how long the command of --notify may take for a message.
	notifyBound = time.Minute
	// notifyAgain is when a message whose command failed is tried again.
	notifyAgain = time.Minute
	// notifyKept is how many messages are kept to be tried again: as many as the inbox of init
	// has room for, of agents, of users and of agbox.
	notifyKept = 3000
	// notifyOutput is how much output of a command that failed is shown, in bytes.
	notifyOutput = 2 << 10
)

// notifier runs a command for each message of the inbox of init. A message is acknowledged when
// its command and those of all messages before it have succeeded.
type notifier struct {
	app     *app
	command string
	// ack acknowledges all messages up to a number.
	ack          func(ctx context.Context, upto uint64) error
	bound, again time.Duration

	mu    sync.Mutex // guards queue
	queue []*notice
	// added has a value if there are new messages.
	added chan struct{}
}

// notice is a message that is not acknowledged.
type notice struct {
	message      *agboxv1.AgentMessage
	tried, taken bool
}

func newNotifier(a *app, command string, ack func(context.Context, uint64) error) *notifier {
	return &notifier{app: a, command: command, ack: ack, bound: notifyBound, again: notifyAgain, added: make(chan struct{}, 1)}
}

// add takes a message. It does not wait for commands.
func (n *notifier) add(m *agboxv1.AgentMessage) {
	n.mu.Lock()
	n.queue = append(n.queue, &notice{message: m})
	if len(n.queue) > notifyKept && n.queue[0].tried {
		n.queue = n.queue[1:] // the inbox does not have it any more
	}
	n.mu.Unlock()
	select {
	case n.added <- struct{}{}:
	default:
	}
}

// run runs commands, one at a time, until ctx ends.
func (n *notifier) run(ctx context.Context) {
	again := time.NewTicker(n.again)
	defer again.Stop()
	for {
		retry := false
		select {
		case <-ctx.Done():
			return
		case <-n.added:
		case <-again.C:
			retry = true
		}
		n.round(ctx, retry)
	}
}

// round tries the messages that are new, and with retry also those that failed.
func (n *notifier) round(ctx context.Context, retry bool) {
	n.mu.Lock()
	all := append([]*notice(nil), n.queue...)
	n.mu.Unlock()
	for _, one := range all {
		if ctx.Err() != nil {
			return
		}
		if one.taken || one.tried && !retry {
			continue
		}
		err := n.tell(ctx, one.message)
		n.mu.Lock()
		one.tried, one.taken = true, err == nil
		n.mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			n.app.sayEach(fmt.Sprintf("The command of --notify failed for message %d, which stays in the inbox and is tried again: %v", one.message.GetSeq(), err))
		default:
			n.acknowledge(ctx)
		}
	}
}

// acknowledge acknowledges the oldest messages that are taken.
func (n *notifier) acknowledge(ctx context.Context) {
	n.mu.Lock()
	var upto uint64
	for len(n.queue) > 0 && n.queue[0].taken {
		upto, n.queue = n.queue[0].message.GetSeq(), n.queue[1:]
	}
	n.mu.Unlock()
	if upto == 0 {
		return
	}
	if err := n.ack(ctx, upto); err != nil && ctx.Err() == nil {
		n.app.say("Messages up to %d were not acknowledged: %v", upto, err)
	}
}

// tell runs the command for a message, which it gets as JSON on standard input, and nowhere else.
// Its output is shown if it fails, escaped: it may repeat what a sandbox has written.
func (n *notifier) tell(ctx context.Context, m *agboxv1.AgentMessage) error {
	ctx, cancel := context.WithTimeout(ctx, n.bound)
	defer cancel()
	var in bytes.Buffer
	if err := printJSONLine(&in, m); err != nil {
		return err
	}
	said := &lastBytes{most: notifyOutput}
	cmd := exec.CommandContext(ctx, "sh", "-c", n.command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // what left the process group may hold the pipes
	err := cmd.Run()
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("it took longer than %v", n.bound)
	}
	if text := strings.TrimSpace(string(said.kept)); err != nil && text != "" {
		err = fmt.Errorf("%w. Its output:\n%s", err, text)
	}
	return err
}

// lastBytes keeps the last bytes that are written to it.
type lastBytes struct {
	most int
	kept []byte
}

// Write takes p.
func (l *lastBytes) Write(p []byte) (int, error) {
	l.kept = append(l.kept, p...)
	l.kept = l.kept[max(0, len(l.kept)-l.most):]
	return len(p), nil
}
