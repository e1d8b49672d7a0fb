package document

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

var (
	composeVariable      = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\{?([A-Za-z_][A-Za-z0-9_]*)`) })
	devcontainerVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\{(?:localEnv|env):([^}:]+)`) })
)

// ProfilesVariable names the variable with the profiles of a compose file that are wanted,
// separated by commas.
const ProfilesVariable = "COMPOSE_PROFILES"

// Variables returns the names of the variables whose values a file needs from its
// reader's environment, sorted. Nothing else of the environment is sent.
func Variables(format agboxv1.ConfigFormat, content []byte) []string {
	var names []string
	find := func(pattern *regexp.Regexp) {
		for _, found := range pattern.FindAllSubmatch(content, -1) {
			names = append(names, string(found[1]))
		}
	}
	switch format {
	case agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER:
		find(devcontainerVariable())
	case agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE:
		find(composeVariable())
		if node := YAML("", content, new(Report)); node != nil {
			for _, service := range node.Get("services").entries() {
				names = append(names, passedOn(service.Value.Get("environment"))...)
				if service.Value.Get("profiles") != nil {
					names = append(names, ProfilesVariable)
				}
				if build := service.Value.Get("build"); build != nil {
					names = append(names, passedOn(build.Get("args"))...)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (n *Node) entries() []Entry {
	if n == nil {
		return nil
	}
	return n.Entries
}

// passedOn returns the variables that an environment lists without a value.
func passedOn(environment *Node) []string {
	if environment == nil {
		return nil
	}
	var names []string
	for _, e := range environment.Entries {
		if e.Value.Kind == Null {
			names = append(names, e.Key.Text)
		}
	}
	for _, item := range environment.Items {
		if item.Kind == String && !slices.Contains([]byte(item.Text), '=') {
			names = append(names, item.Text)
		}
	}
	return names
}

// Lookup returns the value of a variable and whether it is set.
type Lookup func(name string) (string, bool)

// Interpolate replaces $NAME and ${NAME} as in compose files, with ${NAME:-default},
// ${NAME-default}, ${NAME:+other}, ${NAME+other}, ${NAME:?why} and ${NAME?why}. $$ is a
// $. unset has the names that have neither value nor default. Errors do not quote the
// text, which may be a secret: the daemon logs them.
func Interpolate(text string, values Lookup) (out string, unset []string, err error) {
	return expand(text, values, 0)
}

func expand(text string, values Lookup, depth int) (out string, unset []string, err error) {
	const deepest = 8
	if depth > deepest {
		return "", nil, fmt.Errorf("the text nests variables more than %d deep: write it flatter", deepest)
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String(), unset, nil
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			text = rest[1:]
			continue
		case strings.HasPrefix(rest, "{"):
			end := closing(rest)
			if end < 0 {
				return "", nil, errors.New("the text opens a variable with ${ and does not close it: write } behind it, or $$ for a plain $")
			}
			value, missing, err := braced(rest[1:end], values, depth)
			if err != nil {
				return "", nil, err
			}
			b.WriteString(value)
			unset = append(unset, missing...)
			text = rest[end+1:]
		default:
			n := nameLength(rest)
			if n == 0 {
				return "", nil, errors.New("the text has a $ without the name of a variable: write $$ for a plain $")
			}
			value, set := values(rest[:n])
			if !set {
				unset = append(unset, rest[:n])
			}
			b.WriteString(value)
			text = rest[n:]
		}
	}
}

// closing returns the index of the brace that closes the first one.
func closing(text string) int {
	open := 0
	for i, c := range []byte(text) {
		switch {
		case c == '{' && (i == 0 || text[i-1] == '$'):
			open++
		case c == '}':
			if open--; open == 0 {
				return i
			}
		}
	}
	return -1
}

// nameLength returns the length of the variable name at the start, in bytes.
func nameLength(text string) int {
	for i, c := range []byte(text) {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(text)
}

// braced returns the replacement of the inside of ${...}.
func braced(inside string, values Lookup, depth int) (out string, unset []string, err error) {
	n := nameLength(inside)
	name, operator := inside[:n], inside[n:]
	if n == 0 {
		return "", nil, errors.New("the text has ${ without the name of a variable: write $$ for a plain $")
	}
	value, set := values(name)
	if operator == "" {
		if !set {
			unset = append(unset, name)
		}
		return value, unset, nil
	}
	if strings.HasPrefix(operator, ":") { // an empty value counts as unset
		operator = operator[1:]
		set = set && value != ""
	}
	if operator == "" {
		return "", nil, fmt.Errorf("${%.80s:} is not complete: write a default behind the ':', for example ${%[1]s:-default}", name)
	}
	word := operator[1:]
	switch operator[0] {
	case '-':
		if set {
			return value, nil, nil
		}
		return expand(word, values, depth+1)
	case '+':
		if !set {
			return "", nil, nil
		}
		return expand(word, values, depth+1)
	case '?':
		if set {
			return value, nil, nil
		}
		return "", nil, fmt.Errorf("the variable %.80s is not set (%.200s): set it in your environment", name, word)
	}
	return "", nil, fmt.Errorf("the text has ${%.80s with another operator than -, + and ?: write ${NAME} or ${NAME:-default}", name)
}

// EnvFile reads the variables of a file such as .env.
func EnvFile(content []byte) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(string(content)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		} else {
			value, _, _ = strings.Cut(value, " #")
			value = strings.TrimSpace(value)
		}
		values[strings.TrimSpace(name)] = value
	}
	return values
}
