package document

import (
	"regexp"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

var (
	composeVariable      = regexp.MustCompile(`\$\{?([A-Za-z_][A-Za-z0-9_]*)`)
	devcontainerVariable = regexp.MustCompile(`\$\{(?:localEnv|env):([^}:]+)`)
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
		find(devcontainerVariable)
	case agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE:
		find(composeVariable)
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
