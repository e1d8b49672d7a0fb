// Package agentcli is the command agbox-agent, with which an agent reports to its
// supervisor from inside its sandbox.
package agentcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

const help = `agbox-agent reports what an agent does to agbox. It works in the program of an agent.

  agbox-agent hello                       say that the program uses agbox-agent, and print what is known
  agbox-agent state STATE                 HYDRATING, READY, EXECUTING, DRAINING or TERMINATED
  agbox-agent phase PHASE                 PLANNING, EXECUTING or VERIFYING
  agbox-agent beat [--every 15s]          say that the program is alive. --every: say so until the calling process or this
                                          incarnation ends, for programs that have no timer
  agbox-agent usage INPUT OUTPUT [USD]    tokens, and cost as "0.0125", of this incarnation since its start
  agbox-agent step [N]                    say that N steps are complete, or one more
  agbox-agent turn [--checkpoint FILE] [PERCENT]
                                          say that a turn is complete and how full the context is, and save the work; prints
                                          what to know
  agbox-agent context PERCENT             say how full the context is
  agbox-agent gate [--context PERCENT] [--final] TOOL
                                          ask whether a tool may be called. --final: it is one of the final calls
  agbox-agent gate --llm [--context PERCENT] [INPUT [USD]]
                                          ask whether a model may be called that will use so many tokens, and money
  agbox-agent tool [--id ID] [--once] [--final] NAME -- COMMAND ARGS...
                                          run a tool. It is ended if it takes longer than tools with that name may. --once: record
                                          what it prints, at most 8 MiB. If an earlier incarnation has made the call with that ID since
                                          the checkpoint, print that, and do not run it. Exits with 4 if that is not known
  agbox-agent drained                     ask whether to save the work and exit: exits with 75, and prints for how many
                                          milliseconds the step under way may go on
  agbox-agent checkpoint [--kind turn|step|pause] [--turn N] [--step N] [--resume-point TEXT] [FILE]
                                          save the work: a JSON object of at most 16 MiB, from FILE or standard input. Of kind pause it
                                          has checkpoint_id, resume_point, context, intent_backlog and resolution_strategy
  agbox-agent hydrate                     print what is needed to go on: the newest checkpoint, the calls since then, and what the
                                          context_hook of the agent adds
  agbox-agent say TEXT                    say what the agent is doing
  agbox-agent error [--retry-after TIME] TEXT
                                          say which error ends the program. --retry-after: begin the next incarnation after that
                                          time, as 30s after a rate limit. For errors that will come again, report done fail
  agbox-agent pause approval|idle [MESSAGE]
                                          pause the agent until somebody approves or denies, or until it has a message; prints
                                          what changed meanwhile
  agbox-agent resumed ok|replan OBSERVATION
                                          go on after a pause, with the number that pause has printed: as planned, or with a new
                                          plan. Prints EXECUTING or PLANNING
  agbox-agent escalate [--key KEY] TEXT   send a message to the parent of the agent, at last to the operator
  agbox-agent send [--key KEY] TO TEXT    send a message to an agent: its name or id, "parent", or "init" for the operator. With -
                                          for TEXT, standard input. A second message with the same KEY is not delivered
  agbox-agent send --stream STREAM [--key KEY] TEXT
                                          send a message to all agents that have the stream open
  agbox-agent open STREAM, close STREAM   get the messages that others send on a stream from now on, or no more.
                                          agent:NAME: hold that agent below this one, or no more
  agbox-agent recv [--no-wait|--timeout TIME] [AFTER]
                                          acknowledge the messages up to number AFTER, wait for one after it, and print those that
                                          there are, as JSON objects, one a line, at most about 64 KiB: if "left" of the last one
                                          is not 0, acknowledge it to get the next ones
  agbox-agent done complete|abort|fail [MESSAGE]
                                          report the outcome, which ends the agent when its program ends
  agbox-agent spawn [--name NAME] [--class CLASS] [--title TEXT] [--model MODEL] [--env NAME=VALUE] [--work FILE]
                    [--ready start|report] [--lifetime detached|held] [--after AGENT] [--stack NAME] [--input-tokens N] [--cost USD] [--key KEY]
                    [--sandbox new|shared] [--workspace copy|branch|shared|none] [--cpu N] [--memory SIZE] [--pids N]
                    [--share-mount TARGET[:rw]] [--share-tool TOOL] [--allow-host] -- COMMAND ARGS...
                                          spawn an agent and print its id. It runs in this sandbox, or with --sandbox new, as
                                          with --stack, in one of its own with at most what this one has: then the command
                                          returns when the workspace is copied. A request with the same key
                                          makes no other one, also from a later incarnation. --after: it begins when that
                                          agent, which this one has spawned, is COMPLETED
  agbox-agent wait [--any] [AGENT...]     wait until these agents, or all children, have ended, and print them as children
                                          does. --any: until one has
  agbox-agent kill [--mode MODE] AGENT    end an agent that this one, or one below it, has spawned. MODE is terminate or now
  agbox-agent children                    print the agents that this one has spawned, one a line: id, state, name, message
  agbox-agent acquire [--wait] [--shared|--exclusive] RESOURCE...
                                          ask for all these resources at once: file:/PATH, service:NAME or any other word. Prints
                                          all that the agent holds, one a line: resource, mode, fencing number. --wait: until granted
  agbox-agent release [RESOURCE...]       release them, or all; prints what is left
  agbox-agent serve-health [--port PORT]  answer GET /healthz and /readyz on 127.0.0.1:8086 from what was reported, until
                                          this incarnation ends
  agbox-agent api OP [JSON]               send any request, and print the answer

Exit codes: 0 accepted; 1 the supervisor cannot be asked, or the command is wrong; 2 the call may not be made, because the
context is too full, the budget is used up or the agent is paused; 3 there is no such request, or this is no agent; 4 refused;
10 the agent waits for the resources; 11 it has lost all its resources and asks again when it is woken; 12 it is PLANNING after resumed ok,
because it has to ask for its resources again; 75 save the work and exit: from drained, from a state that may not follow
because of that, and from gate and tool once the step has ended or should have. The reason is on standard error.
`

// Is reports whether the name that a program was started with is that of this command.
func Is(name string) bool { return path.Base(name) == "agbox-agent" }

// Run executes the command and returns its exit code.
func Run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] == "help" || isHelp(args[0]) {
		_, _ = io.WriteString(stdout, help)
		return exitOK
	}
	if text := helpOf(args[0]); text != "" && asksForHelp(args) {
		_, _ = io.WriteString(stdout, text)
		return exitOK
	}
	var request map[string]any
	var tool toolCall
	var body []byte
	var err error
	repeats := args[0] == "beat" && len(args) > 1
	switch {
	case repeats:
		_, err = parseEvery(args[1:])
	case args[0] == "serve-health": // reads its arguments itself
	case args[0] == "hydrate":
		return hydrate(ctx, env, stdout, stderr)
	case args[0] == "tool":
		err = tool.parse(args[1:])
	default:
		request, body, err = parse(args, stdin)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "agbox-agent:", err)
		return exitFailed
	}
	socket, token := variable(env, "AGBOX_AGENT_SOCKET"), variable(env, "AGBOX_TOKEN")
	if socket == "" || token == "" {
		_, _ = fmt.Fprintln(stderr, "agbox-agent: This is not the program of an agent: AGBOX_AGENT_SOCKET or AGBOX_TOKEN is not set. \"agbox agent spawn\" starts an agent. In a sandbox that an older agbox made, stop the agent and make the sandbox anew.")
		return exitUnknown
	}
	switch {
	case repeats:
		b, _ := beats(args[1:], socket, token) // parsed above
		return b.run(ctx, stderr)
	case args[0] == "serve-health":
		return serveHealth(ctx, args[1:], socket, token, stderr)
	case args[0] == "tool":
		tool.socket, tool.token, tool.stdout, tool.stderr = socket, token, stdout, stderr
		return tool.run(ctx, env)
	}
	request["token"] = token
	got, raw, err := askUntil(ctx, socket, request, body, stderr)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "agbox-agent: The supervisor cannot be asked:", err)
		return exitFailed
	}
	if got.Checkpoint {
		_, _ = fmt.Fprintln(stderr, "agbox-agent: The agent sent no beat for so long that it was UNHEALTHY: save a checkpoint now.")
	}
	if request["op"] == "hello" || args[0] == "api" {
		_, _ = stdout.Write(raw)
	}
	if command, known := requestCommands[args[0]]; known && got.OK {
		if err := showResult(command, raw, stdout); err != nil {
			_, _ = fmt.Fprintln(stderr, "agbox-agent:", err)
			if own := new(exitError); errors.As(err, &own) {
				return own.code
			}
			return exitFailed
		}
	}
	if got.OK && asksToReplan(request, raw) {
		_, _ = fmt.Fprintln(stderr, "agbox-agent: The agent is PLANNING: ask for its resources again, with acquire, and work only once they are granted.")
		return exitReplan
	}
	if got.OK {
		switch {
		case got.Result.Notice == "":
		case args[0] == "turn":
			_, _ = fmt.Fprintln(stdout, got.Result.Notice)
		case args[0] == "spawn": // its output is the id
			_, _ = fmt.Fprintln(stderr, "agbox-agent:", got.Result.Notice)
		}
		if stored := got.Result.Stored; args[0] == "turn" && stored != nil && *stored == 0 {
			_, _ = fmt.Fprintln(stderr, "agbox-agent: The turn is counted. No checkpoint came with it (turn --checkpoint FILE), so the next incarnation goes on from the newest one before.")
		}
		return got.orDrain(exitOK, args[0], stdout)
	}
	_, _ = fmt.Fprintln(stderr, "agbox-agent:", got.Error.Message)
	return got.orDrain(exitCode(got.Error.Code), args[0], stdout)
}

func isHelp(arg string) bool { return arg == "-h" || arg == "--help" }

// asksForHelp reports whether the arguments of a command have -h or --help. What follows -- is a
// program's, and the words of commands that take a text may be anything after the first one.
func asksForHelp(args []string) bool {
	command, rest := args[0], args[1:]
	if at := slices.Index(rest, "--"); at >= 0 {
		rest = rest[:at]
	} else if slices.Contains([]string{"spawn", "tool", "say", "send", "escalate", "error", "done", "pause", "api"}, command) {
		rest = rest[:min(len(rest), 1)]
	}
	return slices.ContainsFunc(rest, isHelp)
}

// helpOf returns what the help says about a command. It is empty if there is no such command.
func helpOf(command string) string {
	const begin = "  agbox-agent "
	var text strings.Builder
	in := false
	for line := range strings.Lines(help) {
		if usage, begins := strings.CutPrefix(line, begin); begins {
			in = strings.HasPrefix(usage, command+" ") || strings.Contains(usage, ", "+command+" ")
		} else if strings.TrimSpace(line) == "" {
			in = false
		}
		if in {
			text.WriteString(line)
		}
	}
	return text.String()
}
