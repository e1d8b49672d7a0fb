package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// maxMessage is the length of a message, in bytes.
const maxMessage = 64 << 10

type agentSendOptions struct{ key, stream, stack string }

func (a *app) agentSendCommand() *cobra.Command {
	var o agentSendOptions
	cmd := &cobra.Command{
		Use:         "send {AGENT | --stream STREAM} TEXT [flags]",
		Annotations: map[string]string{endsInText: "yes"},
		Short:       "Send an agent a message",
		Long: `Put TEXT into the inbox of an agent, and print the number of the message. With - for
TEXT, standard input is sent. A message has at most 64 KiB.

An agent that is IDLE is woken. The program receives the message with
"agbox-agent recv".

With --stream, all agents that have that stream open ("agbox-agent open") get the
message, of whatever sandbox. The names of those that have it are printed, with the
number of the message in the inbox of each. Streams of the same name in different
stacks are different streams: without --stack, it is those outside of stacks.`,
		Example: `  agbox agent send fixer "the tests are red again"
  agbox agent send fixer - < note.md
  agbox agent send --stream news "main has moved"`,
	}
	f := cmd.Flags()
	f.StringVar(&o.key, "key", "", "`KEY` of the message; a second one with the same key is not sent")
	f.StringVar(&o.stream, "stream", "", "send it to all agents that have `STREAM` open")
	f.StringVar(&o.stack, "stack", "", "with --stream: to the agents in the stack `NAME`")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case o.stream != "":
			return arguments(1, 1, "a TEXT and, because of --stream, no AGENT")(cmd, args)
		case o.stack != "":
			return usagef("--stack is for a message on a stream: add --stream.")
		}
		return arguments(2, 2, "an AGENT and a TEXT")(cmd, args)
	}
	cmd.RunE = a.runs(o.run)
	return cmd
}

func (o *agentSendOptions) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	text, err := a.messageText(args[len(args)-1])
	if err != nil {
		return err
	}
	if o.stream != "" {
		return o.toStream(ctx, a, c, text)
	}
	to, err := a.agent(ctx, c, args[0], changes)
	if err != nil {
		return err
	}
	seq, err := c.SendMessage(ctx, to, o.key, text)
	if err != nil {
		return err
	}
	return a.println(seq)
}

// toStream prints who got the message, and tells of those that refused it.
func (o *agentSendOptions) toStream(ctx context.Context, a *app, c *client.Client, text string) error {
	recipients, err := c.SendOnStream(ctx, o.stream, o.stack, o.key, text)
	if err != nil {
		return err
	}
	code := exitStatus(codeOK)
	for _, to := range recipients {
		if to.GetReason() != agboxv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
			a.say("%s", to.GetMessage())
			code = codeFailure
			continue
		}
		if _, err := fmt.Fprintf(a.stdout, "%s\t%d\n", printable(agentName(to)), to.GetSeq()); err != nil {
			return err
		}
	}
	if code != codeOK {
		return code
	}
	return nil
}

// messageText returns the text of a message.
func (a *app) messageText(text string) (string, error) {
	if text == "-" {
		if a.stdin == nil {
			return "", usagef("There is no standard input to send: write the TEXT instead of -.")
		}
		all, err := io.ReadAll(io.LimitReader(a.stdin, maxMessage+1))
		if err != nil {
			return "", err
		}
		text = string(all)
	}
	switch {
	case text == "":
		return "", usagef("The message is empty: write a TEXT.")
	case len(text) > maxMessage:
		return "", usagef("A message has at most %d bytes: send a part of it, or write it into a file and send its name.", maxMessage)
	case strings.ToValidUTF8(text, "") != text:
		return "", usagef("A message is text in UTF-8.")
	}
	return text, nil
}

func (a *app) agentInboxCommand() *cobra.Command {
	var out output
	var ack uint64
	var follow bool
	var notify string
	cmd := &cobra.Command{
		Use:   "inbox AGENT [flags]",
		Short: "Print the messages that an agent has not received yet",
		Long: `Print the messages in the inbox of an agent, oldest first: its number, the sender,
what it is about, and the text. They stay there until the agent acknowledges them.

The inbox of "init" is that of the operator. --ack removes messages from it. With -f,
each message is a line, and new ones are printed as they come.

With -f --notify CMD, the shell runs CMD for each message to init, one after the other, with
the message as JSON on standard input: it can tell a person. When CMD exits with 0, agbox
acknowledges the message, so the next agbox does not repeat it. If CMD fails or takes more
than a minute, it says so, goes on with the next message, and tries this one again each
minute. It stays in the inbox, with those after it, until CMD takes it: if agbox ends before,
the next agbox runs CMD for all of these again. If the daemon restarts, none is lost or
repeated. If agbox is killed while CMD runs, that message comes again. The output of CMD is
shown if it fails.`,
		Example: `  agbox agent inbox fixer
  agbox agent inbox init --ack 12
  agbox agent inbox -f init
  agbox agent inbox -f init --notify 'jq -r .text | mail -s agbox ann'`,
		Args: arguments(1, 1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if notify != "" && (args[0] != "init" || !follow) {
				return usagef("--notify is for \"agbox agent inbox init -f\".")
			}
			if ack > 0 {
				if args[0] != "init" {
					return usagef("--ack is for the inbox of init: agent %s acknowledges its own messages.", printable(args[0]))
				}
				if err := c.AcknowledgeInbox(ctx, ack); err != nil {
					return err
				}
			}
			of, err := a.agent(ctx, c, args[0], reads)
			if err != nil {
				return err
			}
			if follow {
				return a.followInbox(ctx, c, of, out.format, notify)
			}
			var list []*agboxv1.AgentMessage
			for m, err := range c.Inbox(ctx, of) {
				if err != nil {
					return err
				}
				list = append(list, m)
			}
			from := senders{}
			return printList(a, out, list, messageColumns, eachRow(func(m *agboxv1.AgentMessage) []view.Cell {
				return cells(m.GetSeq(), from.name(ctx, c, m.GetFrom()), strings.TrimPrefix(m.GetKind().String(), "MESSAGE_KIND_"), orDash(m.GetStream()),
					a.sinceCell(m.GetAt()), m.GetFrom(), strings.Join(strings.Fields(m.GetText()), " "))
			}))
		}),
	}
	cmd.Flags().Uint64Var(&ack, "ack", 0, "first remove the messages up to this `NUMBER`")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new messages, a line for each, until the agent is removed")
	cmd.Flags().StringVar(&notify, "notify", "", "with -f, run `CMD` for each message to init, and acknowledge it")
	addTable(cmd, &out)
	return cmd
}

// senders has the names of agents that sent messages, by their ids. Each is asked for once.
type senders map[string]string

// name returns the name of the agent with an id, or the id if it has none or is removed.
func (s senders) name(ctx context.Context, c *client.Client, id string) string {
	if name, known := s[id]; known {
		return name
	}
	g, _ := c.GetAgent(ctx, id)
	s[id] = cmp.Or(g.GetName(), id)
	return s[id]
}

// followInbox prints a line for each message that there is and that comes, and runs the command
// notify for each if it is not empty.
func (a *app) followInbox(ctx context.Context, c *client.Client, ref string, as format, notify string) error {
	from, tell := senders{}, func(*agboxv1.AgentMessage) {}
	if notify != "" {
		n := newNotifier(a, notify, c.AcknowledgeInbox)
		telling, end := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { n.run(telling) })
		defer running.Wait()
		defer end()
		tell = n.add
	}
	for m, err := range c.FollowInbox(ctx, ref) {
		if err != nil {
			return err
		}
		tell(m)
		switch {
		case as == formatJSON:
			err = printJSONLine(a.stdout, m)
		default:
			_, err = fmt.Fprintf(a.stdout, "%d\t%s\t%s\t%s\n", m.GetSeq(), printable(from.name(ctx, c, m.GetFrom())), strings.TrimPrefix(m.GetKind().String(), "MESSAGE_KIND_"),
				printable(strings.Join(strings.Fields(m.GetText()), " ")))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// messageColumns are the columns of the list of messages.
var messageColumns = []view.Column{
	{Title: "NUMBER", Right: true}, {Title: "FROM", Min: 8}, {Title: "KIND", Omit: 3}, {Title: "STREAM", Min: 6, Omit: 2}, {Title: "SENT", Omit: 1},
	{Title: "FROM ID", Wide: true}, {Title: "TEXT", Min: 16},
}

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
