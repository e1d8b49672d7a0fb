// Command agbox is the command line of agbox: sandboxes, the commands that run
// in them, and their output. It talks to agboxd only through package client.
package main

import (
	"context"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
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
		width:     terminalWidth,
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

// usualWidth is the assumed width, in columns, of a terminal that reports none.
const usualWidth = 80

// terminalWidth is the width of the terminal behind stderr in columns, 0 if
// there is none.
func terminalWidth() int {
	width, _, err := term.GetSize(int(os.Stderr.Fd()))
	switch {
	case err != nil:
		return 0
	case width <= 0:
		return usualWidth
	}
	return width
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

// usageTemplate is cobra's, without the aliases and with fewer blank lines.
var usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{- if .HasExample}}

Examples:
{{.Example}}{{end}}
{{- $cmds := .Commands}}{{if .HasAvailableSubCommands}}
{{- range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}
{{- if not .AllChildCommandsHaveGroup}}

Commands:{{range $cmds}}{{if and (eq .GroupID "") .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}
{{- if .HasAvailableLocalFlags}}

Flags:
` + localFlags + `{{end}}
` + globalFlags + `
{{- if .HasHelpSubCommands}}

More help:{{range .Commands}}{{if .IsAdditionalHelpTopicCommand}}
  {{rpad (print "agbox help " .Name) 22}} {{.Short}}{{end}}{{end}}{{end}}
`

// localFlags is the part of usageTemplate with the flags of the command.
var localFlags = "{{.LocalFlags.FlagUsagesWrapped " + flagColumns + " | trimTrailingWhitespaces}}"

// globalFlags is the part of usageTemplate with the flags of all commands.
var globalFlags = `{{- if .HasAvailableInheritedFlags}}

Global flags:
{{.InheritedFlags.FlagUsagesWrapped ` + flagColumns + ` | trimTrailingWhitespaces}}{{end}}`

// flagColumns is the width that makes the flags at most helpWidth wide.
var flagColumns = strconv.Itoa(helpWidth - flagSlop)

// The groups of the commands in the help.
const (
	groupSandboxes = "sandboxes"
	groupExecs     = "execs"
	groupAgents    = "agents"
	groupRest      = "rest"
)

// onlyCommands makes cmd a group: without arguments it shows its help; an unknown
// command is a usage error.
func onlyCommands(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = fewTypos
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.ValidArgsFunction = cobra.NoFileCompletions
}

// flagParsers matches the strconv errors that the flag library passes on unchanged.
var flagParsers = regexp.MustCompile(`strconv\.Parse(Bool|Int|Uint|Float): parsing ".*": (.*)$`)

// flagProblem replaces strconv's words in a flag error with plain ones.
func flagProblem(err error) string {
	return flagParsers.ReplaceAllStringFunc(err.Error(), func(found string) string {
		parts := flagParsers.FindStringSubmatch(found)
		switch {
		case parts[1] == "Bool":
			return "write true or false"
		case parts[2] == strconv.ErrRange.Error():
			return "the number is too large"
		case parts[1] == "Uint":
			return "write a whole number, 0 or more"
		}
		return "write a number"
	})
}

// The order of commands in help is that in which they are added.
func init() { cobra.EnableCommandSorting = false }

func (a *app) rootCommand() *cobra.Command {
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
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			c.DisableFlagsInUseLine = true
			root.AddCommand(c)
		}
	}
	add(groupSandboxes, a.createCommand(), a.upCommand(), a.downCommand(), a.buildCommand(), a.runCommand(), a.lsCommand(), a.inspectCommand(), a.statsCommand(), a.topCommand(), a.portCommand(), a.stopCommand(), a.startCommand(), a.restartCommand(), a.renameCommand(), a.rmCommand(), a.pruneCommand(), a.eventsCommand(), a.initCommand(), a.configCommand(), a.trustCommand(), a.policyCommand())
	add(groupExecs, a.execCommand(), a.shellCommand(), a.attachCommand(), a.logsCommand(), a.psCommand(), a.waitCommand(), a.killCommand(), a.cpCommand(), a.diffCommand(), a.applyCommand(), a.pullCommand(), a.syncCommand())
	add(groupAgents, append(a.presetCommands(), a.presetToolCommand(), a.agentCommand())...)
	add(groupRest, a.toolsCommand(), a.daemonCommand(), a.imageCommand(), a.doctorCommand(), a.versionCommand(), a.manCommand())
	root.SetCompletionCommandGroupID(groupRest)
	root.SetHelpCommand(helpCommand())
	root.SetHelpCommandGroupID(groupRest)
	root.AddCommand(specTopic(), exitCodesTopic())
	a.completeFlags(root)
	refuseEmpty(root)
	return root
}

// endsInText marks a command whose arguments after the first are text for a program or an agent,
// which may be empty.
const endsInText = "ends in text"

// refuseEmpty makes an empty argument a mistake in all commands: a script that has lost a name
// would otherwise mean everything, or something else. Only texts and the arguments of commands
// may be empty.
func refuseEmpty(cmd *cobra.Command) {
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
		refuseEmpty(c)
	}
}
