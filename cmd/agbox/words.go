package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// fewTypos is how many typing errors a word may have for a suggestion.
const fewTypos = 2

// foreignCommands are commands of Docker and of similar tools that agbox has under another
// name, or not at all, each with the sentence that says what to do.
var foreignCommands = map[string]string{
	"images":    "`agbox image ls` lists images.",
	"rmi":       "`agbox image rm` removes images.",
	"delete":    "`agbox rm` removes sandboxes.",
	"list":      "`agbox ls` lists sandboxes, `agbox ps` the commands in them.",
	"container": "A sandbox is what Docker calls a container: see `agbox ls`, `agbox run` and `agbox rm`.",
	"info":      "`agbox daemon status` shows the daemon and its engine.",
	"status":    "`agbox ls` lists sandboxes, `agbox daemon status` shows the daemon.",
	"ssh":       "`agbox shell SANDBOX` opens a shell.",
	"enter":     "`agbox shell SANDBOX` opens a shell.",
	"compose":   "`agbox create --compose FILE --compose-primary SERVICE` creates a sandbox from a compose file.",
	"network":   "Each sandbox has a private network of its own, which is made and removed with it. `agbox port SANDBOX` lists the published ports.",
	"volume":    "The volumes of a sandbox are made and removed with it, see --volume of `agbox create`.",
	"pause":     "A sandbox cannot be paused. `agbox kill -s STOP EXEC` pauses a command, `agbox kill -s CONT EXEC` continues it.",
	"unpause":   "A sandbox cannot be paused. `agbox kill -s CONT EXEC` continues a command.",
	"update":    "The limits of a sandbox are fixed when it is created: create another one.",
	"commit":    "agbox makes no image of a sandbox. `agbox image build` builds one from a Dockerfile.",
	"export":    "`agbox cp SANDBOX:/path .` copies files out of a sandbox.",
	"login":     "agbox uses the logins of Docker: use `docker login`.",
	"logout":    "agbox uses the logins of Docker: use `docker logout`.",
	"push":      "agbox pushes no images: use `docker push`.",
	"tag":       "agbox tags no images: use `docker tag`.",
}

// unknownCommand is the error for a word that is no command of cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	hint := ""
	if !cmd.HasParent() {
		hint = foreignCommands[word]
	}
	if near := nearest(word, cmd.SuggestionsFor(word)); hint == "" && len(near) > 0 {
		hint = "Did you mean " + strings.Join(near, " or ") + "?"
	}
	if hint != "" {
		hint = " " + hint
	}
	return &usageError{text: fmt.Sprintf("%s has no command %q.%s", cmd.CommandPath(), word, hint), of: cmd.CommandPath()}
}

// foreignFlags are flags of Docker that agbox has under another name, or whose meaning does
// not fit a sandbox, each with the sentence that says what to do. They hold for the
// commands that create a sandbox.
var foreignFlags = map[string]string{
	"net":           noNetworks,
	"link":          "Services of a sandbox reach each other by their names: add one with --service NAME=IMAGE.",
	"add-host":      "--allow-host lets the sandbox reach this machine as host.docker.internal; services are reached by their names.",
	"publish-all":   "Name each port with -p PORT; a free port of this machine is then chosen.",
	"restart":       "--revival says what happens when the sandbox's container ends by itself.",
	"security-opt":  "Use --seccomp-unconfined or --allow-new-privileges, or neither for the safe defaults.",
	"init":          "Every sandbox has an init process, so omit it.",
	"volumes-from":  "A volume belongs to one sandbox. --mount shares a folder of this machine.",
	"cpu-shares":    "Use --cpus.",
	"memory-swap":   "Use --memory.",
	"label-file":    "Use --label KEY=VALUE.",
	"pid":           "A sandbox has processes of its own and cannot share those of others: omit it.",
	"ipc":           "A sandbox shares no memory with others: omit it. --shm-size sets the size of /dev/shm.",
	"userns":        "The engine decides on user namespaces: omit it.",
	"health-cmd":    "Write the health check of a service into the sandbox file, see docs/spec.md.",
	"log-driver":    "agbox keeps the output of commands itself: `agbox logs` shows it.",
	"mac-address":   noNetworks,
	"ip":            noNetworks,
	"dns":           "A sandbox uses the name servers of the engine: configure them there.",
	"network-alias": noNetworks,
}

const noNetworks = "A sandbox has a private network of its own and cannot join another one. Add servers with --service NAME=IMAGE, publish ports with -p, " +
	"and reach this machine with --allow-host."

// unknownFlag is the usage error for flags of cmd that cannot be parsed. It names what is
// meant by an unknown flag.
func unknownFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return usagef("%s.", flagProblem(err))
	}
	name, hint := unknown.GetSpecifiedName(), ""
	written := "--" + name
	if unknown.GetSpecifiedShortnames() != "" {
		name, written = letters[name], "-"+name
	}
	if cmd.Flags().Lookup("mount-workspace") != nil { // it creates a sandbox
		hint = foreignFlags[name]
	}
	if near := nearFlags(cmd, name); hint == "" && len(near) > 0 {
		hint = "Did you mean --" + strings.Join(near, " or --") + "?"
	}
	if hint != "" {
		hint = " " + hint
	}
	return usagef("%s has no flag %s.%s", cmd.CommandPath(), written, hint)
}

// letters are the short forms that Docker has of flags of agbox without one.
var letters = map[string]string{"l": "label", "h": "hostname", "P": "publish-all", "c": "cpu-shares"}

// nearFlags are the flags of cmd that are named nearly like name, or begin with it.
func nearFlags(cmd *cobra.Command, name string) []string {
	var near []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && len(name) > 1 && (typos(name, f.Name) <= min(fewTypos, len(f.Name)/2) || strings.HasPrefix(f.Name, name)) {
			near = append(near, f.Name)
		}
	})
	return nearest(name, near)
}

// mostSuggestions is how many words an error suggests: more are a list, and no answer.
const mostSuggestions = 3

// nearest are those of some words that are most like word: those that begin with it first.
func nearest(word string, near []string) []string {
	begins := func(s string) int {
		if strings.HasPrefix(s, word) {
			return 0
		}
		return 1
	}
	slices.SortFunc(near, func(a, b string) int {
		return cmp.Or(cmp.Compare(begins(a), begins(b)), cmp.Compare(typos(word, a), typos(word, b)), cmp.Compare(a, b))
	})
	return near[:min(len(near), mostSuggestions)]
}

// typos is the number of bytes to insert, remove or replace to make b of a.
func typos(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost = 1 + min(before, row[j], row[j+1])
			}
			before, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// signalFlag matches a signal as kill(1) takes it: -9, -KILL, -SIGKILL.
var signalFlag = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-([0-9]{1,2}|(SIG)?[A-Z][A-Z0-9]+)$`) })

// withSignalFlags writes the signals among the arguments of agbox kill as --signal.
func withSignalFlags(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd.Name() != "kill" || cmd.Parent() != root {
		return args
	}
	args = slices.Clone(args)
	for i, arg := range args[slices.Index(args, "kill"):] {
		if arg == "--" {
			break
		}
		if parts := signalFlag().FindStringSubmatch(arg); parts != nil {
			args[i+slices.Index(args, "kill")] = "--signal=" + parts[1]
		}
	}
	return args
}

// flagParsers matches the strconv errors that the flag library passes on unchanged.
var flagParsers = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`strconv\.Parse(Bool|Int|Uint|Float): parsing ".*": (.*)$`)
})

// flagProblem replaces strconv's words in a flag error with plain ones.
func flagProblem(err error) string {
	return flagParsers().ReplaceAllStringFunc(err.Error(), func(found string) string {
		parts := flagParsers().FindStringSubmatch(found)
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
