package main

import (
	"bufio"
	"bytes"
	"errors"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agbox/agbox/internal/filesystem"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// localTimes are the layouts of times without a zone, which are local times.
var localTimes = []string{
	"2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02T15:04:05.999999999",
	"2006-01-02 15:04", "2006-01-02 15:04:05",
}

// timeFlag reads a point in time: a duration before now, a date or time, or
// RFC 3339. Empty is the zero time.
func timeFlag(flag, value string, now time.Time) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	if d, ok := duration(value); ok {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, value); err == nil {
		return t, nil
	}
	for _, form := range localTimes {
		if t, err := time.ParseInLocation(form, value, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usagef("--%s %q is not a time: give a duration such as 10m or 2d, a date such as 2026-05-04, or RFC 3339.", flag, value)
}

// duration is like time.ParseDuration, but allows days.
func duration(value string) (time.Duration, bool) {
	var whole time.Duration
	if days, rest, ok := strings.Cut(value, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, false
		}
		whole, value = time.Duration(n)*24*time.Hour, rest
		if rest == "" {
			return whole, true
		}
	}
	d, err := time.ParseDuration(value)
	return whole + d, err == nil && d >= 0
}

// maxEnvFile is the size limit of a file of variables, in bytes.
const maxEnvFile = 1 << 20

// envFlags are the flags for the variables of a command or of a sandbox.
type envFlags struct {
	files, plain, secret []string
	// lines are those of the files once they are read: a pipe can be read only once.
	lines []string
}

// add adds the flags. of says whose variables they are.
func (o *envFlags) add(f *pflag.FlagSet, of string) {
	f.StringArrayVarP(&o.plain, "env", "e", nil, "`KEY=VALUE` for "+of+"; KEY alone takes the value from this environment (repeatable)")
	f.StringArrayVar(&o.files, "env-file", nil, "`FILE` with lines as --env has them; # begins a comment line (repeatable)")
	f.StringArrayVar(&o.secret, "secret-env", nil, "like --env, for a secret `KEY=VALUE`: encrypted and never shown, as with names like API_KEY (repeatable)")
}

// read returns the variables, and the names of those that --secret-env marks. --env
// overrides the files, a later file an earlier one.
func (o *envFlags) read(a *app) (envs map[string]string, marked []string, err error) {
	for ; len(o.files) > 0; o.files = o.files[1:] {
		lines, err := envFile(o.files[0])
		if err != nil {
			return nil, nil, err
		}
		o.lines = append(o.lines, lines...)
	}
	return a.environmentWithSecrets(slices.Concat(o.lines, o.plain), o.secret)
}

// envFile reads a file of variables in Docker's format: a line is KEY=VALUE or KEY, the
// value is taken as it is, with quotes. Empty lines and those that begin with # count for
// nothing.
func envFile(path string) ([]string, error) {
	text, err := filesystem.ReadNamed(path, maxEnvFile)
	if errors.Is(err, filesystem.ErrTooLarge) {
		return nil, usagef("--env-file %s is larger than 1 MiB.", path)
	}
	if err != nil {
		return nil, usagef("--env-file %s cannot be read: %s.", path, err)
	}
	var pairs []string
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxEnvFile+1)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimLeft(strings.TrimPrefix(lines.Text(), "\ufeff"), " \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, _, _ := strings.Cut(line, "=")
		if key == "" || strings.ContainsAny(key, " \t") {
			return nil, usagef("--env-file %s is not valid in line %d: write KEY=VALUE, without spaces in KEY and without export.", path, n)
		}
		pairs = append(pairs, line)
	}
	return pairs, lines.Err()
}

// filterKeys are the keys that a command takes in --filter, each with its rule.
type filterKeys[T any] map[string]func(item T, value string) bool

// addFilter adds --filter to a command.
func addFilter[T any](cmd *cobra.Command, values *[]string, keys filterKeys[T]) {
	words := slices.Sorted(maps.Keys(keys))
	cmd.Flags().StringArrayVar(values, "filter", nil, "only items with `KEY=VALUE` (repeatable); the keys are "+strings.Join(words, ", "))
	for i := range words {
		words[i] += "="
	}
	_ = cmd.RegisterFlagCompletionFunc("filter", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// filtered returns the items that all keys of --filter match. Of several values for a key
// one must match, of several labels all.
func filtered[T any](list []T, values []string, keys filterKeys[T]) ([]T, error) {
	wanted := make(map[string][]string)
	for _, text := range values {
		key, value, ok := strings.Cut(text, "=")
		if !ok || keys[key] == nil {
			return nil, usagef("--filter %s is not valid: write KEY=VALUE. The keys are %s.", printable(text), strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
		}
		wanted[key] = append(wanted[key], value)
	}
	return slices.DeleteFunc(list, func(item T) bool {
		for key, values := range wanted {
			matches := func(value string) bool { return keys[key](item, value) }
			if key == "label" && slices.ContainsFunc(values, func(v string) bool { return !matches(v) }) ||
				!slices.ContainsFunc(values, matches) {
				return true
			}
		}
		return false
	}), nil
}

// filtersBy reports whether a key is among the values of --filter.
func filtersBy(values []string, keys ...string) bool {
	return slices.ContainsFunc(values, func(text string) bool {
		key, _, _ := strings.Cut(text, "=")
		return slices.Contains(keys, key)
	})
}

// isState compares a state as tables show it. Without its remark, or as the remark alone,
// it matches too.
func isState(shown, value string) bool {
	word, remark, _ := strings.Cut(shown, " ")
	return strings.EqualFold(value, shown) || strings.EqualFold(value, word) || remark != "" && strings.EqualFold(value, strings.Trim(remark, "()"))
}

// hasLabel matches KEY, or KEY=VALUE.
func hasLabel(labels map[string]string, text string) bool {
	key, value, given := strings.Cut(text, "=")
	got, has := labels[key]
	return has && (!given || got == value)
}

// isImage compares an image's name, also without its tag or digest.
func isImage(name, value string) bool {
	bare, _, _ := strings.Cut(name, "@")
	if i := strings.LastIndexByte(bare, ':'); i > strings.LastIndexByte(bare, '/') {
		bare = bare[:i]
	}
	return value == name || value == bare
}

func isSandboxState(h *agboxv1.SandboxHandle, value string) bool {
	return isState(sandboxState(h), value)
}

func isSandboxImage(h *agboxv1.SandboxHandle, value string) bool { return isImage(h.GetImage(), value) }

// sandboxFilters are the keys of agbox ls; status and ancestor are docker's words.
var sandboxFilters = filterKeys[*agboxv1.SandboxHandle]{
	"id":       func(h *agboxv1.SandboxHandle, v string) bool { return strings.HasPrefix(h.GetSandboxId(), v) },
	"name":     func(h *agboxv1.SandboxHandle, v string) bool { return strings.Contains(h.GetName(), v) },
	"state":    isSandboxState,
	"status":   isSandboxState,
	"image":    isSandboxImage,
	"ancestor": isSandboxImage,
	"label":    func(h *agboxv1.SandboxHandle, v string) bool { return hasLabel(h.GetLabels(), v) },
}

func isExecState(e *agboxv1.ExecStatus, value string) bool {
	return isState(execState(e)+endMarks(e), value)
}

func isExit(e *agboxv1.ExecStatus, value string) bool {
	code, err := strconv.Atoi(value)
	return err == nil && hasExit(e) && int(e.GetExitCode()) == code
}

// execFilters are the keys of agbox ps.
func execFilters(names map[string]string) filterKeys[*agboxv1.ExecStatus] {
	return filterKeys[*agboxv1.ExecStatus]{
		"id":     func(e *agboxv1.ExecStatus, v string) bool { return strings.HasPrefix(e.GetExecId(), v) },
		"name":   func(e *agboxv1.ExecStatus, v string) bool { return strings.Contains(e.GetName(), v) },
		"state":  isExecState,
		"status": isExecState,
		"exit":   isExit,
		"exited": isExit,
		"command": func(e *agboxv1.ExecStatus, v string) bool {
			return strings.Contains(strings.Join(e.GetCommand(), " "), v)
		},
		"sandbox": func(e *agboxv1.ExecStatus, v string) bool {
			return v == e.GetSandboxId() || v == names[e.GetSandboxId()]
		},
	}
}

// imageFilters are the keys of agbox image ls. A reference may have * and ?, as in docker.
var imageFilters = filterKeys[*agboxv1.Image]{
	"id": func(i *agboxv1.Image, v string) bool {
		return v != "" && strings.HasPrefix(strings.TrimPrefix(i.GetId(), "sha256:"), strings.TrimPrefix(v, "sha256:"))
	},
	"dangling": func(i *agboxv1.Image, v string) bool { return strconv.FormatBool(len(i.GetNames()) == 0) == v },
	"reference": func(i *agboxv1.Image, v string) bool {
		return slices.ContainsFunc(i.GetNames(), func(name string) bool {
			bare, _, _ := strings.Cut(name, ":")
			whole, _ := path.Match(v, name)
			short, _ := path.Match(v, bare)
			return whole || short || isImage(name, v)
		})
	},
}

func isAgentState(g *agboxv1.Agent, value string) bool { return strings.EqualFold(g.GetWord(), value) }

// agentFilters are the keys of agbox agent ls.
var agentFilters = filterKeys[*agboxv1.Agent]{
	"id":      func(g *agboxv1.Agent, v string) bool { return strings.HasPrefix(g.GetAgentId(), v) },
	"name":    func(g *agboxv1.Agent, v string) bool { return strings.Contains(g.GetName(), v) },
	"state":   isAgentState,
	"status":  isAgentState,
	"class":   func(g *agboxv1.Agent, v string) bool { return g.GetClass() == v },
	"sandbox": func(g *agboxv1.Agent, v string) bool { return g.GetSandboxId() == v },
	"parent":  func(g *agboxv1.Agent, v string) bool { return g.GetParent() == v },
}
