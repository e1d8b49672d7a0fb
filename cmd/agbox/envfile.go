package main

import (
	"bufio"
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/agbox/agbox/internal/filesystem"
)

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
