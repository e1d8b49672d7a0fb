package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) agentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent COMMAND",
		Short: "Run supervised agents, which outlive crashes of their program and sandbox",
		Long: `Run supervised agents.

An agent is a worker with a name of its own. Its program runs as a command in a
sandbox: that is an incarnation of the agent. If the program crashes, agbox starts
the next incarnation after a pause; if the sandbox is lost, it is started again. An
agent ends when its program completes, when it has crashed too often, or when you
kill it. agbox, its daemon and Docker may be stopped and upgraded meanwhile.

docs/agents.md explains the rules.`,
	}
	onlyCommands(cmd)
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"work", "Start and watch:", []*cobra.Command{
			a.agentSpawnCommand(), a.agentListCommand(), a.agentTreeCommand(), a.agentInspectCommand(), a.agentAttachCommand(), a.agentLogsCommand(), a.agentWaitCommand(),
		}},
		{"talk", "Talk and decide:", []*cobra.Command{
			a.agentSendCommand(), a.agentInboxCommand(), a.agentApproveCommand(), a.agentDenyCommand(), a.agentResolveCommand(),
		}},
		{"halt", "Halt, go on and end:", []*cobra.Command{
			a.agentPauseCommand(), a.agentDrainCommand(), a.agentResumeCommand(), a.agentHoldCommand(), a.agentKillCommand(), a.agentRemoveCommand(),
		}},
		{"records", "Look closer:", []*cobra.Command{
			a.agentEventsCommand(), a.agentJournalCommand(), a.agentCheckpointsCommand(), a.agentLeasesCommand(), a.agentReapCommand(),
		}},
	} {
		cmd.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, sub := range group.commands {
			sub.DisableFlagsInUseLine, sub.GroupID = true, group.id
			cmd.AddCommand(sub)
		}
	}
	return cmd
}

// agentSpawnOptions describe the agent to spawn.
type agentSpawnOptions struct {
	specOptions
	id, in, class, title, model, ready, onLoss string
	work, from                                 string
	after                                      []string
	// ofSandbox are the flags about a new sandbox.
	ofSandbox        []*pflag.Flag
	envs             []string
	attempts         uint32
	delays           []time.Duration
	failures         uint32
	window, cooldown time.Duration
	attach, hold     bool
	maySpawn         []string
	stack, reach     string
}

func (a *app) agentSpawnCommand() *cobra.Command {
	var o agentSpawnOptions
	var command []string
	cmd := &cobra.Command{
		Use:         "spawn [NAME] [--in SANDBOX | --image IMAGE | -f FILE] [flags] [-- COMMAND ARGS...]",
		Annotations: map[string]string{endsInText: "yes"},
		Short:       "Start an agent and print its id",
		Long: `Start an agent whose program is COMMAND, and print its id. With --in it runs in an
existing sandbox. Otherwise agbox makes a sandbox for it, from the same file and
flags as "agbox create" takes, and removes that sandbox 5 minutes after the agent
has ended. It keeps one that may have changed files or commits in its workspace that were not
brought home, as "agbox agent ls -a" says, until "agbox apply" or "agbox rm".

The sandbox file may describe the agent as well, in its block agent: name, command
and limits. NAME, COMMAND and flags override that block. With --in, the block is that
of the file from which the sandbox was made.

A program that reports nothing and exits with 0 has completed the agent; one that uses
agbox-agent says "agbox-agent done complete" first. Exit code 143 is no crash. Any other
end is one: agbox starts the program again after 5 seconds, then after 1, 5 and 30
minutes. The fifth crash, the third with the same error, or the second for lack of
memory ends the agent as DEAD_LETTER.`,
		Example: `  agbox agent spawn fixer --in demo -- sh -c ./work.sh
  agbox agent spawn --image my/agent --class coder -- agent --task 12
  agbox agent spawn                      # what ./agbox.yaml describes`,
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			if dash == len(args) {
				return usagef("%s needs the agent's COMMAND after --.", cmd.CommandPath())
			}
			if dash >= 0 {
				args, command = args[:dash], args[dash:]
			}
			return arguments(0, 1, "one NAME")(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.with(func(ctx context.Context, c *client.Client, args []string) error {
		name := ""
		if len(args) > len(command) {
			name = args[0]
		}
		return o.run(ctx, a, c, name, command)
	})
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "`ID` of the agent; with it, the command can be repeated safely")
	f.StringVar(&o.in, "in", "", "run in this existing `SANDBOX`")
	f.StringVar(&o.from, "from", "", "begin with a checkpoint of another agent: `AGENT[@NUMBER]`, by default its newest one")
	f.StringArrayVar(&o.after, "after", nil, "begin once `AGENT` is COMPLETED (repeatable)")
	f.StringVar(&o.class, "class", "", "`CLASS` of the agent")
	f.StringVar(&o.title, "title", "", "`TEXT` that says what it works on")
	f.StringVar(&o.model, "model", "", "`MODEL`, handed over as AGBOX_MODEL")
	f.StringVar(&o.work, "work", "", "`FILE` that says what to do, at most 64 KiB; the program finds a copy at the path in AGBOX_WORK")
	f.StringVar(&o.ready, "ready", "", "`WHEN` the program counts as working: start (the default), report or probe")
	f.StringVar(&o.onLoss, "on-loss", "", "`WHAT` to do if its sandbox is lost: revive (the default), reap or ask")
	f.StringVar(&o.stack, "stack", "", "start the stack `NAME`: messages cannot cross its border, except between its root and the root's parent")
	f.StringVar(&o.reach, "reach", "", "`WHOM` it reaches instead of the agents of its sandbox: sandbox:SANDBOX, stack:NAME or all")
	f.StringSliceVar(&o.maySpawn, "may-spawn", nil, "allow the program to spawn agents of this `CLASS`, in its sandbox or in ones made from that (repeatable)")
	f.StringArrayVar(&o.envs, "agent-env", nil, "`NAME=VALUE` for the agent's program (repeatable)")
	f.Uint32Var(&o.attempts, "attempts", 0, "end the agent at crash number `N` (default 5)")
	f.DurationSliceVar(&o.delays, "retry-delay", nil, "`TIME` before the first, second, ... retry (default 5s,1m,5m,30m)")
	f.Uint32Var(&o.failures, "breaker-crashes", 0, "refuse new agents of the class once `N` different ones have crashed (default 3)")
	f.DurationVar(&o.window, "breaker-window", 0, "within this `TIME` (default 15m)")
	f.DurationVar(&o.cooldown, "breaker-cooldown", 0, "for this `TIME`; then one new agent is tried (default 30m)")
	f.BoolVar(&o.attach, "attach", false, "watch the agent until it has ended, as \"agbox agent attach\" does, instead of printing its id")
	f.BoolVar(&o.hold, "hold", false, "the agent goes on only while it is held: print its id and hold it, as \"agbox agent hold\" does")
	f.Lookup("attempts").DefValue, f.Lookup("retry-delay").DefValue = "0", ""
	var own []string
	f.VisitAll(func(flag *pflag.Flag) { own = append(own, flag.Name) })
	o.addFlags(cmd) // after those that are about the agent, because there are many
	f.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(own, flag.Name) {
			o.ofSandbox = append(o.ofSandbox, flag)
		}
	})
	return cmd
}

func (o *agentSpawnOptions) run(ctx context.Context, a *app, c *client.Client, name string, command []string) error {
	req, err := o.request(ctx, a, c, name, command)
	if err != nil {
		return err
	}
	held := client.AgentHold{Name: client.NewID()}
	if o.hold {
		if o.attach {
			return usagef("--hold and --attach exclude each other: run \"agbox agent attach\" beside it.")
		}
		req.Hold, req.Spec.Lifetime = held.Name, agboxv1.AgentLifetime_AGENT_LIFETIME_HELD
	}
	agent, err := accepted(ctx, acceptBound, func(ctx context.Context) (*agboxv1.Agent, error) { return c.SpawnAgent(ctx, req) })
	if err != nil {
		return err
	}
	if o.attach {
		return new(agentAttachOptions).run(ctx, a, c, agent.GetAgentId(), nil)
	}
	if _, err = fmt.Fprintln(a.stdout, agent.GetAgentId()); err != nil || !o.hold {
		return err
	}
	held.Agent = agent.GetAgentId()
	return a.holdAgent(ctx, c, held)
}

// request makes the request for an agent. Sandbox files that came with a folder need the
// person's agreement, as for any sandbox.
func (o *agentSpawnOptions) request(ctx context.Context, a *app, c *client.Client, name string, command []string) (*agboxv1.SpawnAgentRequest, error) {
	spec, err := o.agentSpec(name, command)
	if err != nil {
		return nil, err
	}
	req := &agboxv1.SpawnAgentRequest{AgentId: o.id, Spec: spec, SandboxId: o.in}
	if req.Reach, err = a.reached(ctx, c, o.reach); err != nil {
		return nil, err
	}
	if req.AgentId == "" {
		req.AgentId = client.NewID()
	}
	if req.FromAgent, req.FromCheckpoint, err = fromCheckpoint(o.from); err != nil {
		return nil, err
	}
	if req.GetFromAgent() != "" {
		if req.FromAgent, err = a.agent(ctx, c, req.GetFromAgent(), reads); err != nil {
			return nil, err
		}
	}
	if spec.After, err = a.resolved(ctx, c, ofAgent, spec.GetAfter(), reads); err != nil {
		return nil, err
	}
	if o.in != "" {
		if err := o.noSandbox(); err != nil {
			return nil, err
		}
		req.SandboxId, err = a.sandbox(ctx, c, o.in, changes)
		return req, err
	}
	input, err := orLeave(ctx, func() (*client.SpecInput, error) { return o.sandboxRequest(ctx, a, c, "", nil) })
	if err != nil {
		return nil, err
	}
	if err := c.Connect(ctx); err != nil {
		return nil, err
	}
	belongTo(input.Request)
	if err := o.agreed(ctx, a, c, input); err != nil {
		return nil, err
	}
	req.Sandbox = input.Request
	return req, nil
}

// reached returns what --reach says, with the id of a sandbox.
func (a *app) reached(ctx context.Context, c *client.Client, reach string) (string, error) {
	kind, of, named := strings.Cut(reach, ":")
	switch {
	case reach == "" || reach == "all" || kind == "stack" && of != "":
		return reach, nil
	case kind != "sandbox" || !named || of == "":
		return "", usagef("--reach is sandbox:SANDBOX, stack:NAME or all, not %s.", printable(reach))
	}
	id, err := a.sandbox(ctx, c, of, changes)
	return kind + ":" + id, err
}

// agentSpec makes the spec of the agent from the flags.
func (o *agentSpawnOptions) agentSpec(name string, command []string) (*agboxv1.AgentSpec, error) {
	envs, err := assignments("agent-env", o.envs)
	if err != nil {
		return nil, err
	}
	work, err := workFile(o.work)
	if err != nil {
		return nil, err
	}
	spec := &agboxv1.AgentSpec{Name: name, Class: o.class, Title: o.title, Command: command, Model: o.model, Envs: envs, Work: work, After: o.after}
	if spec.Ready, err = word[agboxv1.AgentReady]("ready", o.ready, "AGENT_READY_", agboxv1.AgentReady_value); err != nil {
		return nil, err
	}
	if spec.Revival, err = word[agboxv1.AgentRevival]("on-loss", o.onLoss, "AGENT_REVIVAL_", agboxv1.AgentRevival_value); err != nil {
		return nil, err
	}
	if o.attempts > 0 || len(o.delays) > 0 {
		spec.Retry = &agboxv1.AgentRetry{Attempts: o.attempts}
		for _, d := range o.delays {
			spec.Retry.Delays = append(spec.Retry.Delays, durationpb.New(d))
		}
	}
	if o.stack != "" {
		spec.Stack = &agboxv1.AgentStack{Name: o.stack}
	}
	if len(o.maySpawn) > 0 {
		spec.MaySpawn = &agboxv1.AgentMaySpawn{Classes: o.maySpawn}
	}
	spec.Breaker = o.breakerLimits()
	return spec, nil
}

// noSandbox refuses flags about a sandbox when the agent runs in one that exists.
func (o *agentSpawnOptions) noSandbox() error {
	for _, flag := range o.ofSandbox {
		if flag.Changed {
			return usagef("--in runs the agent in a sandbox that exists, and --%s describes a new one: leave out one of them.", flag.Name)
		}
	}
	return nil
}

// workFile makes the path of the work absolute. The daemon does not know the home of the
// caller.
func workFile(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if path = here(path); filepath.IsAbs(path) {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usagef("--work %s: your home is not known (%v): write the whole path.", printable(path), err)
	}
	return filepath.Join(home, path[1:]), nil
}

// breakerLimits returns the limits that the flags give, or nil.
func (o *agentSpawnOptions) breakerLimits() *agboxv1.AgentBreakerLimits {
	if o.failures == 0 && o.window == 0 && o.cooldown == 0 {
		return nil
	}
	limits := &agboxv1.AgentBreakerLimits{Failures: o.failures}
	if o.window != 0 {
		limits.Window = durationpb.New(o.window)
	}
	if o.cooldown != 0 {
		limits.Cooldown = durationpb.New(o.cooldown)
	}
	return limits
}

// word returns the enum value that a flag names in lower case without its prefix. An empty
// text is the zero value.
func word[E ~int32](flag, text, prefix string, values map[string]int32) (E, error) {
	if text == "" {
		return 0, nil
	}
	n, known := values[prefix+strings.ToUpper(text)]
	if !known || n == 0 {
		return 0, usagef("--%s %s is not possible: see --help for the words it takes.", flag, printable(text))
	}
	return E(n), nil
}
