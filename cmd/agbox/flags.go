package main

import (
	"bufio"
	"bytes"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/spec/document"
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
	if envs, err = a.environment("env", slices.Concat(o.lines, o.plain)); err != nil {
		return nil, nil, err
	}
	hidden, err := a.environment("secret-env", o.secret)
	if err != nil || hidden == nil {
		return envs, nil, err
	}
	if envs == nil {
		envs = make(map[string]string, len(hidden))
	}
	maps.Copy(envs, hidden)
	return envs, slices.Sorted(maps.Keys(hidden)), nil
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

// completeWords completes the value of a flag with words.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	// It fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
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

// tailLines reads a number of lines; nil is all of them.
func tailLines(text string) (*uint64, error) {
	if text == "all" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, usagef("--tail %q is not valid: give a number of lines, or all.", text)
	}
	return &n, nil
}

// assignments reads the KEY=VALUE pairs of a repeatable flag.
func assignments(flag string, pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usagef("--%s %s is not valid: write KEY=VALUE.", flag, pair)
		}
		out[key] = value
	}
	return out, nil
}

// environment is like assignments, but KEY alone takes the value from agbox's own
// environment. A variable that is not set there is omitted.
func (a *app) environment(flag string, pairs []string) (map[string]string, error) {
	given := make([]string, 0, len(pairs))
	for _, pair := range pairs {
		if !strings.Contains(pair, "=") && pair != "" {
			value, ok := a.lookupEnv(pair)
			if !ok {
				continue
			}
			pair += "=" + value
		}
		given = append(given, pair)
	}
	return assignments(flag, given)
}

func flagError(name string, err error) error {
	if err == nil {
		return nil
	}
	return usagef("--%s: %s.", name, document.Sentence(err))
}

// eachValue reads the values of a repeatable flag.
func eachValue[T any](keep func(error), flag string, values []string, read func(string) (T, error)) []T {
	var all []T
	for _, value := range values {
		one, err := read(value)
		if err != nil {
			keep(flagError(flag, err))
			continue
		}
		all = append(all, one)
	}
	return all
}

// wordsFlag is a command in one flag; "" is a command of one empty word.
type wordsFlag struct{ p *[]string }

func (f wordsFlag) Set(text string) (err error) {
	if text == "" {
		*f.p = []string{""}
		return nil
	}
	*f.p, err = document.ParseCommand(text)
	return err
}

func (f wordsFlag) String() string {
	return strings.Join(*f.p, " ")
}

// Type names the value for the help.
func (wordsFlag) Type() string { return "words" }

// boolFlag is a flag with three values: true, false and not given. So =false can
// override a file.
type boolFlag struct{ p **bool }

func (f boolFlag) Set(text string) error {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("write true or false")
	}
	*f.p = &b
	return nil
}

func (f boolFlag) String() string {
	if *f.p == nil {
		return "false"
	}
	return strconv.FormatBool(**f.p)
}

// Type makes the help show the flag without a value.
func (boolFlag) Type() string { return "bool" }

// enum is a type of enum values of the API.
type enum interface {
	~int32
	Descriptor() protoreflect.EnumDescriptor
}

// enumFlag reads the word for an enum value; empty leaves the choice to the daemon.
func enumFlag[E enum](flag, word string) (E, error) {
	if word == "" {
		return 0, nil
	}
	d := E(0).Descriptor()
	if v := document.EnumValue(d, strings.ReplaceAll(word, "-", "_")); v != nil {
		return E(v.Number()), nil
	}
	words := document.EnumWords(d)
	last := len(words) - 1
	return 0, usagef("--%s %q is not %s or %s.", flag, word, strings.Join(words[:last], ", "), words[last])
}

// yamlFlag reads a message as it is written in a sandbox file.
func yamlFlag(text string, into proto.Message) error {
	report := new(document.Report)
	if node := document.YAML("", []byte(text), report); node != nil {
		(&document.Reader{Report: report}).Message(node, into.ProtoReflect(), "")
	}
	if len(report.Problems) == 0 {
		return nil
	}
	p := report.Problems[0]
	return errors.New(strings.TrimPrefix(p.GetField()+": ", ": ") + strings.TrimSuffix(p.GetMessage(), "."))
}
