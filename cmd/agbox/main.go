// Command agbox is the command line of agbox: sandboxes, the commands that run
// in them, and their output. It talks to agboxd only through package client.
package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
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
		width:     func() int { return terminalWidth(os.Stderr) },
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

const rootLong = `agbox gives each coding agent a sandbox: a container it may do anything in, on
a network of its own. If this program or the daemon ends, commands keep running
in the sandbox, and their output and exit codes are kept.

SANDBOX, EXEC and AGENT are ids or names. The beginning of an id will do to look at
something, and on a terminal also to change it: agbox says then what it stands for.

Example:
  box=$(agbox create demo --image debian:12)   # waits until it is ready
  agbox exec demo -- sh -c 'echo hello; id'    # shows the output, exits with its code
  job=$(agbox exec -d demo -- make test)       # runs in the background
  agbox logs -f $job
  agbox rm demo`

// The groups of the commands in the help.
const (
	groupSandboxes = "sandboxes"
	groupExecs     = "execs"
	groupAgents    = "agents"
	groupRest      = "rest"
)

// The order of commands in help is that in which they are added.
func init() { cobra.EnableCommandSorting = false }

// command is one below agbox.
type command struct {
	group, name string
	make        func() *cobra.Command
}

// commands returns all commands, in the order in which help shows them.
func (a *app) commands() []command {
	all := []command{
		{groupSandboxes, "create", a.createCommand},
		{groupSandboxes, "up", a.upCommand},
		{groupSandboxes, "down", a.downCommand},
		{groupSandboxes, "build", a.buildCommand},
		{groupSandboxes, "run", a.runCommand},
		{groupSandboxes, "ls", a.lsCommand},
		{groupSandboxes, "inspect", a.inspectCommand},
		{groupSandboxes, "stats", a.statsCommand},
		{groupSandboxes, "top", a.topCommand},
		{groupSandboxes, "port", a.portCommand},
		{groupSandboxes, "stop", a.stopCommand},
		{groupSandboxes, "start", a.startCommand},
		{groupSandboxes, "restart", a.restartCommand},
		{groupSandboxes, "rename", a.renameCommand},
		{groupSandboxes, "rm", a.rmCommand},
		{groupSandboxes, "prune", a.pruneCommand},
		{groupSandboxes, "events", a.eventsCommand},
		{groupSandboxes, "init", a.initCommand},
		{groupSandboxes, "config", a.configCommand},
		{groupSandboxes, "trust", a.trustCommand},
		{groupSandboxes, "policy", a.policyCommand},
		{groupExecs, "exec", a.execCommand},
		{groupExecs, "shell", a.shellCommand},
		{groupExecs, "attach", a.attachCommand},
		{groupExecs, "logs", a.logsCommand},
		{groupExecs, "ps", a.psCommand},
		{groupExecs, "wait", a.waitCommand},
		{groupExecs, "kill", a.killCommand},
		{groupExecs, "cp", a.cpCommand},
		{groupExecs, "diff", a.diffCommand},
		{groupExecs, "apply", a.applyCommand},
		{groupExecs, "pull", a.pullCommand},
		{groupExecs, "sync", a.syncCommand},
	}
	for _, p := range allPresets() {
		all = append(all, command{groupAgents, p.Name, func() *cobra.Command { return a.presetCommand(&p) }})
	}
	return append(all, []command{
		{groupAgents, "preset", a.presetToolCommand},
		{groupAgents, "agent", a.agentCommand},
		{groupRest, "tools", a.toolsCommand},
		{groupRest, "daemon", a.daemonCommand},
		{groupRest, "pool", a.poolCommand},
		{groupRest, "image", a.imageCommand},
		{groupRest, "doctor", a.doctorCommand},
		{groupRest, "version", a.versionCommand},
		{groupRest, "man", a.manCommand},
	}...)
}

// rootCommand returns agbox with all commands, or with the one that args begin with: to make
// all of them takes longer than most of them work.
func (a *app) rootCommand(args ...string) *cobra.Command {
	root := &cobra.Command{
		Use:           "agbox",
		Short:         "Sandboxes for coding agents",
		Long:          rootLong,
		SilenceErrors: true,
		SilenceUsage:  true,
		// It runs before all commands: none has a hook of its own.
		PersistentPreRun: a.useYAML,
	}
	root.SetUsageTemplate(usageTemplate)
	onlyCommands(root)
	root.SetFlagErrorFunc(unknownFlag)
	a.addVersionFlag(root)
	root.PersistentFlags().StringVar(&a.socket, "socket", "", "`PATH` of the daemon's Unix socket, instead of this install's")
	root.PersistentFlags().BoolVar(&a.noAutostart, "no-autostart", false, "do not start the daemon if it is not running")
	root.AddGroup(
		&cobra.Group{ID: groupSandboxes, Title: "Sandboxes:"},
		&cobra.Group{ID: groupExecs, Title: "Commands in a sandbox:"},
		&cobra.Group{ID: groupAgents, Title: "Agents in sandboxes of their own:"},
		&cobra.Group{ID: groupRest, Title: "Other commands:"},
	)
	all := a.commands()
	if len(args) > 0 && args[0] != "man" { // which prints all
		if i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] }); i >= 0 {
			all = all[i : i+1]
		}
	}
	for _, one := range all {
		c := one.make()
		c.GroupID = one.group
		c.DisableFlagsInUseLine = true
		root.AddCommand(c)
	}
	root.SetCompletionCommandGroupID(groupRest)
	root.SetHelpCommand(helpCommand())
	root.SetHelpCommandGroupID(groupRest)
	root.AddCommand(specTopic(), exitCodesTopic())
	a.completeFlags(root)
	checkArguments(root)
	return root
}

// checkArguments lets commands that do not say which arguments they take have none. It makes an
// empty argument a mistake in all commands: a script that has lost a name would otherwise mean
// everything, or something else. Only texts and the arguments of commands may be empty.
func checkArguments(cmd *cobra.Command) {
	if cmd.Args == nil && cmd.Runnable() {
		cmd.Args, cmd.ValidArgsFunction = arguments(0, 0, ""), cobra.NoFileCompletions
	}
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		names := args
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			names = args[:dash]
		}
		if len(names) > 1 && cmd.Annotations[endsInText] != "" {
			names = names[:1]
		}
		for _, name := range []string{"name", "sandbox"} {
			if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
				return usagef("--%s of %s is empty. If it is a variable of a script, that is not set.", name, cmd.CommandPath())
			}
		}
		if slices.Contains(names, "") {
			return usagef("An argument of %s is empty. If it is a variable of a script, that is not set.", cmd.CommandPath())
		}
		if check == nil {
			return cobra.ArbitraryArgs(cmd, args)
		}
		return check(cmd, args)
	}
	for _, c := range cmd.Commands() {
		checkArguments(c)
	}
}

// run executes the command line and returns the exit code of the process.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCommand(args...)
	root.SetArgs(withSignalFlags(root, args))
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return codeOK
	}
	code := a.report(cmd, err)
	if cmd.Annotations[ownExitCodes] != "" && !errors.As(err, new(exitStatus)) {
		return codeExecAgbox
	}
	return code
}

// report prints an error and returns its exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status)
	}
	if errors.Is(err, errSpecTold) {
		return codeUsage
	}
	if readerGone(err) {
		return codeSignal + int(syscall.SIGPIPE)
	}
	if told, ok := errors.AsType[toldError](err); ok {
		return exitCode(told.cause)
	}
	var usage *usageError
	if !a.began && !errors.As(err, &usage) {
		usage = &usageError{text: strings.TrimSuffix(err.Error(), ".") + "."}
	}
	if usage != nil {
		a.sayEach(usage.text)
		a.say("See `%s --help`.", cmp.Or(usage.of, cmd.CommandPath()))
		return codeUsage
	}
	a.sayEach(err.Error())
	return exitCode(err)
}

// readerGone reports whether err is that nobody reads stdout any more, as with "| head". The
// signal ends most commands before they see that, but not if the caller ignores it, nor if
// it was git that wrote.
func readerGone(err error) bool {
	write, ok := errors.AsType[*fs.PathError](err)
	return ok && write.Path == os.Stdout.Name() && errors.Is(write, syscall.EPIPE)
}
