// Package agentcli is the command agbox-agent, with which an agent reports to its
// supervisor from inside its sandbox.
package agentcli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Is reports whether the name that a program was started with is that of this command.
func Is(name string) bool { return path.Base(name) == "agbox-agent" }

// Run executes the command and returns its exit code.
func Run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] == "help" || isHelp(args[0]) {
		_, _ = io.WriteString(stdout, help())
		return exitOK
	}
	if text := helpOf(args[0]); text != "" && asksForHelp(args) {
		_, _ = io.WriteString(stdout, text)
		return exitOK
	}
	s := session{variable(env, "AGBOX_AGENT_SOCKET"), variable(env, "AGBOX_TOKEN"), env, stdout, stderr}
	if args[0] == "hydrate" {
		return hydrate(ctx, s)
	}
	request, body, rest, err := parse(args, stdin)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "agbox-agent:", err)
		return exitFailed
	}
	if s.socket == "" || s.token == "" {
		_, _ = fmt.Fprintln(stderr, "agbox-agent: This is not the program of an agent: AGBOX_AGENT_SOCKET or AGBOX_TOKEN is not set. \"agbox agent spawn\" starts an agent. In a sandbox that an older agbox made, stop the agent and make the sandbox anew.")
		return exitUnknown
	}
	if rest != nil {
		return rest(ctx, s)
	}
	return send(ctx, s, args[0], request, body)
}

// send sends the request of a command, and prints what its answer says.
func send(ctx context.Context, s session, name string, request map[string]any, body []byte) int {
	stdout, stderr := s.stdout, s.stderr
	got, raw, err := s.askUntil(ctx, request, body)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "agbox-agent: The supervisor cannot be asked:", err)
		return exitFailed
	}
	if got.Checkpoint {
		_, _ = fmt.Fprintln(stderr, "agbox-agent: The agent sent no beat for so long that it was UNHEALTHY: save a checkpoint now.")
	}
	if name == "api" || request["op"] == "hello" {
		_, _ = stdout.Write(raw)
	}
	if command, _ := find(name); command.show != nil && got.OK {
		if err := showResult(command.show, raw, stdout); err != nil {
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
		case name == "turn":
			_, _ = fmt.Fprintln(stdout, got.Result.Notice)
		case name == "spawn": // its output is the id
			_, _ = fmt.Fprintln(stderr, "agbox-agent:", got.Result.Notice)
		}
		if stored := got.Result.Stored; name == "turn" && stored != nil && *stored == 0 {
			_, _ = fmt.Fprintln(stderr, "agbox-agent: The turn is counted. No checkpoint came with it (turn --checkpoint FILE), so the next incarnation goes on from the newest one before.")
		}
		return got.orDrain(exitOK, name, stdout)
	}
	_, _ = fmt.Fprintln(stderr, "agbox-agent:", got.Error.Message)
	return got.orDrain(exitCode(got.Error.Code), name, stdout)
}

// parser makes a request of the arguments of a command, without its op if that is the name of the
// command. body is what follows its line.
type parser func(args []string, stdin io.Reader) (request map[string]any, body []byte, err error)

// alone is the parser of requests that are made of the arguments only.
func alone(parse func(args []string) (map[string]any, error)) parser {
	return func(args []string, _ io.Reader) (map[string]any, []byte, error) {
		request, err := parse(args)
		return request, nil, err
	}
}

// command is a row of commands.
type command struct {
	// name is that of the op, too, if the command only sends a request.
	name string
	// usage has the arguments, and about is what the help says. A row without about is in that of the
	// row before; a further row of the same name has only these.
	usage, about string
	// parse makes the request. Without one, the arguments are the fields of the request with the
	// names in fields, of which the first are needed.
	parse  parser
	fields string
	needed int
	// show prints the result; nil prints none. The error may be an exitError.
	show func(result json.RawMessage, stdout io.Writer) error
	// own reads the arguments of a command that does more than to send a request. It returns the
	// rest of the command, or nil if the request is all.
	own func(args []string) (func(ctx context.Context, s session) int, error)
	// free means that each word after the first one can be one of a text, or of a program.
	free bool
}

// commands are the commands, in the order of the help.
var commands = []command{
	{name: "hello", about: `say that the program uses agbox-agent, and print what is known`},
	{name: "state", usage: "STATE", fields: "state", needed: 1, about: `HYDRATING, READY, EXECUTING, DRAINING or TERMINATED`},
	{name: "phase", usage: "PHASE", fields: "state", needed: 1, about: `PLANNING, EXECUTING or VERIFYING`},
	{name: "beat", usage: "[--every 15s]", own: beatEvery,
		about: `say that the program is alive. --every: say so until the calling process or this
incarnation ends, for programs that have no timer`},
	{name: "usage", usage: "INPUT OUTPUT [USD]", fields: "input_tokens output_tokens cost_usd", needed: 2,
		about: `tokens, and cost as "0.0125", of this incarnation since its start`},
	{name: "step", usage: "[N]", fields: "steps", about: `say that N steps are complete, or one more`},
	{name: "turn", usage: "[--checkpoint FILE] [PERCENT]", parse: parseTurn,
		about: `say that a turn is complete and how full the context is, and save the work; prints
what to know`},
	{name: "context", usage: "PERCENT", fields: "context_pct", needed: 1, about: `say how full the context is`},
	{name: "gate", usage: "[--context PERCENT] [--final] TOOL", parse: alone(parseGate),
		about: `ask whether a tool may be called. --final: it is one of the final calls`},
	{name: "gate", usage: "--llm [--context PERCENT] [INPUT [USD]]",
		about: `ask whether a model may be called that will use so many tokens, and money`},
	{name: "tool", usage: "[--id ID] [--once] [--final] NAME -- COMMAND ARGS...", own: runTool, free: true,
		about: `run a tool. It is ended if it takes longer than tools with that name may. --once: record
what it prints, at most 8 MiB. If an earlier incarnation has made the call with that ID since
the checkpoint, print that, and do not run it. Exits with 4 if that is not known`},
	{name: "drained", about: `ask whether to save the work and exit: exits with 75, and prints for how many
milliseconds the step under way may go on`},
	{name: "checkpoint", usage: "[--kind turn|step|pause] [--turn N] [--step N] [--resume-point TEXT] [FILE]", parse: parseCheckpoint,
		about: `save the work: a JSON object of at most 16 MiB, from FILE or standard input. Of kind pause it
has checkpoint_id, resume_point, context, intent_backlog and resolution_strategy`},
	{name: "hydrate", about: `print what is needed to go on: the newest checkpoint, the calls since then, and what the
context_hook of the agent adds`},
	{name: "say", usage: "TEXT", fields: "text", needed: 1, free: true, about: `say what the agent is doing`},
	{name: "error", usage: "[--retry-after TIME] TEXT", parse: alone(parseError), free: true,
		about: `say which error ends the program. --retry-after: begin the next incarnation after that
time, as 30s after a rate limit. For errors that will come again, report done fail`},
	{name: "pause", usage: "approval|idle [MESSAGE]", parse: alone(parsePause), show: showRaw, free: true,
		about: `pause the agent until somebody approves or denies, or until it has a message; prints
what changed meanwhile`},
	{name: "resumed", usage: "ok|replan OBSERVATION", parse: alone(parseResumed), show: shown(showPhase),
		about: `go on after a pause, with the number that pause has printed: as planned, or with a new
plan. Prints EXECUTING or PLANNING`},
	{name: "escalate", usage: "[--key KEY] TEXT", parse: parseEscalate, free: true,
		about: `send a message to the parent of the agent, at last to the operator`},
	{name: "send", usage: "[--key KEY] TO TEXT", parse: parseSend, free: true,
		about: `send a message to an agent: its name or id, "parent", or "init" for the operator. With -
for TEXT, standard input. A second message with the same KEY is not delivered`},
	{name: "send", usage: "--stream STREAM [--key KEY] TEXT", about: `send a message to all agents that have the stream open`},
	{name: "open", usage: "STREAM, close STREAM", parse: alone(parseStream),
		about: `get the messages that others send on a stream from now on, or no more.
agent:NAME: hold that agent below this one, or no more`},
	{name: "close", parse: alone(parseStream)},
	{name: "recv", usage: "[--no-wait|--timeout TIME] [AFTER]", parse: alone(parseRecv), show: shown(showMessages),
		about: `acknowledge the messages up to number AFTER, wait for one after it, and print those that
there are, as JSON objects, one a line, at most about 64 KiB: if "left" of the last one
is not 0, acknowledge it to get the next ones`},
	{name: "done", usage: "complete|abort|fail [MESSAGE]", fields: "outcome message", needed: 1, free: true,
		about: `report the outcome, which ends the agent when its program ends`},
	{name: "spawn", usage: `[--name NAME] [--class CLASS] [--title TEXT] [--model MODEL] [--env NAME=VALUE] [--work FILE]
                    [--ready start|report] [--lifetime detached|held] [--after AGENT] [--stack NAME] [--input-tokens N] [--cost USD] [--key KEY]
                    [--sandbox new|shared] [--workspace copy|branch|shared|none] [--cpu N] [--memory SIZE] [--pids N]
                    [--share-mount TARGET[:rw]] [--share-tool TOOL] [--allow-host] -- COMMAND ARGS...`,
		parse: alone(parseSpawn), show: shown(showSpawned), free: true,
		about: `spawn an agent and print its id. It runs in this sandbox, or with --sandbox new, as
with --stack, in one of its own with at most what this one has: then the command
returns when the workspace is copied. A request with the same key
makes no other one, also from a later incarnation. --after: it begins when that
agent, which this one has spawned, is COMPLETED`},
	{name: "wait", usage: "[--any] [AGENT...]", parse: alone(parseWait), show: shown(showChildren),
		about: `wait until these agents, or all children, have ended, and print them as children
does. --any: until one has`},
	{name: "kill", usage: "[--mode MODE] AGENT", parse: alone(parseKill),
		about: `end an agent that this one, or one below it, has spawned. MODE is terminate or now`},
	{name: "children", parse: alone(noArguments), show: shown(showChildren),
		about: `print the agents that this one has spawned, one a line: id, state, name, message`},
	{name: "acquire", usage: "[--wait] [--shared|--exclusive] RESOURCE...", parse: alone(parseAcquire), show: shown(showAcquired),
		about: `ask for all these resources at once: file:/PATH, service:NAME or any other word. Prints
all that the agent holds, one a line: resource, mode, fencing number. --wait: until granted`},
	{name: "release", usage: "[RESOURCE...]", parse: alone(parseRelease), show: shown(showAcquired),
		about: `release them, or all; prints what is left`},
	{name: "serve-health", usage: "[--port PORT]", own: answerHealth,
		about: `answer GET /healthz and /readyz on 127.0.0.1:8086 from what was reported, until
this incarnation ends`},
	{name: "api", usage: "OP [JSON]", parse: alone(parseAPI), free: true, about: `send any request, and print the answer`},
}

const (
	helpHead = `agbox-agent reports what an agent does to agbox. It works in the program of an agent.

`
	helpTail = `
Exit codes: 0 accepted; 1 the supervisor cannot be asked, or the command is wrong; 2 the call may not be made, because the
context is too full, the budget is used up or the agent is paused; 3 there is no such request, or this is no agent; 4 refused;
10 the agent waits for the resources; 11 it has lost all its resources and asks again when it is woken; 12 it is PLANNING after resumed ok,
because it has to ask for its resources again; 75 save the work and exit: from drained, from a state that may not follow
because of that, and from gate and tool once the step has ended or should have. The reason is on standard error.
`
)

// column is where the help says what a command does.
const column = 42

// help is what the help says about a row.
func (c command) help() string {
	if c.about == "" {
		return ""
	}
	text := "  agbox-agent " + c.name + " " + c.usage
	margin := "\n" + strings.Repeat(" ", column)
	about := strings.ReplaceAll(c.about, "\n", margin) + "\n"
	if len(text) > column-2 {
		return text + margin + about
	}
	return fmt.Sprintf("%-*s%s", column, text, about)
}

// find returns a command.
func find(name string) (c command, known bool) {
	if i := slices.IndexFunc(commands, func(c command) bool { return c.name == name }); i >= 0 {
		return commands[i], true
	}
	return c, false
}

// parse reads the command line: it returns the request with the body that follows its line or, if
// the command does more, the rest of it.
func parse(args []string, stdin io.Reader) (request map[string]any, body []byte, rest func(ctx context.Context, s session) int, err error) {
	c, known := find(args[0])
	if !known {
		return nil, nil, nil, fmt.Errorf("there is no command %q; \"agbox-agent help\" lists all", args[0])
	}
	if c.own != nil {
		if rest, err = c.own(args[1:]); rest != nil || err != nil {
			return nil, nil, rest, err
		}
	}
	if c.parse != nil {
		request, body, err = c.parse(args[1:], stdin)
	} else {
		request, err = positional(c.name, args[1:], c.needed, strings.Fields(c.fields)...)
	}
	if err == nil && request["op"] == nil {
		request["op"] = c.name
	}
	return request, body, nil, err
}

func isHelp(arg string) bool { return arg == "-h" || arg == "--help" }

// asksForHelp reports whether the arguments of a command have -h or --help. What follows -- is a
// program's.
func asksForHelp(args []string) bool {
	c, _ := find(args[0])
	rest := args[1:]
	if at := slices.Index(rest, "--"); at >= 0 {
		rest = rest[:at]
	} else if c.free {
		rest = rest[:min(len(rest), 1)]
	}
	return slices.ContainsFunc(rest, isHelp)
}

// helpOf returns what the help says about a command. It is empty if there is no such command.
func helpOf(name string) (text string) {
	for i, c := range commands {
		switch {
		case c.name != name:
		case c.about == "":
			return commands[i-1].help()
		default:
			text += c.help()
		}
	}
	return text
}

// help is about all commands.
func help() string {
	text := helpHead
	for _, c := range commands {
		text += c.help()
	}
	return text + helpTail
}
