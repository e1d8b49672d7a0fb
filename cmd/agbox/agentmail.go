package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// maxMessage is the length of a message, in bytes.
const maxMessage = 64 << 10

func (a *app) agentSendCommand() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use:   "send AGENT TEXT [flags]",
		Short: "Send an agent a message",
		Long: `Put TEXT into the inbox of an agent, and print the number of the message. With - for
TEXT, standard input is sent. A message has at most 64 KiB.

An agent that is IDLE is woken. The program receives the message with
"agbox-agent recv".`,
		Example: `  agbox agent send fixer "the tests are red again"
  agbox agent send fixer - < note.md`,
		Args: arguments(2, 2, "an AGENT and a TEXT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			text, err := a.messageText(args[1])
			if err != nil {
				return err
			}
			seq, err := c.SendMessage(ctx, args[0], key, text)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, seq)
			return err
		}),
	}
	cmd.Flags().StringVar(&key, "key", "", "`KEY` of the message; a second one with the same key is not sent")
	return cmd
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
	var out format
	var ack uint64
	cmd := &cobra.Command{
		Use:   "inbox AGENT [flags]",
		Short: "Print the messages that an agent has not received yet",
		Long: `Print the messages in the inbox of an agent, oldest first: its number, the sender,
what it is about, and the text. They stay there until the agent acknowledges them.

The inbox of "init" is that of the operator. --ack removes messages from it.`,
		Example: `  agbox agent inbox fixer
  agbox agent inbox init --ack 12`,
		Args: arguments(1, 1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if ack > 0 {
				if args[0] != "init" {
					return usagef("--ack is for the inbox of init: agent %s acknowledges its own messages.", printable(args[0]))
				}
				if err := c.AcknowledgeInbox(ctx, ack); err != nil {
					return err
				}
			}
			var list []*agboxv1.AgentMessage
			for m, err := range c.Inbox(ctx, args[0]) {
				if err != nil {
					return err
				}
				list = append(list, m)
			}
			if out == formatJSON {
				return printJSONList(a.stdout, list)
			}
			return a.printMessages(list)
		}),
	}
	cmd.Flags().Uint64Var(&ack, "ack", 0, "first remove the messages up to this `NUMBER`")
	addFormat(cmd, &out)
	return cmd
}

// printMessages prints messages as a table.
func (a *app) printMessages(list []*agboxv1.AgentMessage) error {
	rows := make([][]string, len(list))
	for i, m := range list {
		rows[i] = []string{
			fmt.Sprint(m.GetSeq()), printable(m.GetFrom()), strings.TrimPrefix(m.GetKind().String(), "MESSAGE_KIND_"),
			orDash(printable(m.GetStream())), a.since(m.GetAt()), cut(printable(strings.Join(strings.Fields(m.GetText()), " ")), 100),
		}
	}
	return printTable(a.stdout, []string{"NUMBER", "FROM", "KIND", "STREAM", "SENT", "TEXT"}, rows)
}
