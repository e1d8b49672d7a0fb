package admission

import (
	"path"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec"
)

// publishedRules adds the problems that a spec has by the published contract and not by ours.
func publishedRules(result *spec.Result) {
	s := result.Draft()
	if s == nil {
		return
	}
	for i, p := range s.GetPorts() {
		if p.GetHostPort() == 0 {
			result.Problem([]any{"ports", i, "host_port"}, "host_port must be between 1 and 65535")
		}
	}
	noEmptyWords(result, s.GetCommand())
	for i, c := range s.GetServices() {
		noEmptyWords(result, c.GetCommand(), "services", i)
		if len(c.GetPostStartOnPrimary()) > 0 && c.GetHealthcheck() == nil {
			result.Problem([]any{"services", i, "post_start_on_primary"}, "Companion container %.80q with post_start_on_primary must define healthcheck", c.GetName())
		}
	}
	for i, c := range s.GetCopies() {
		at := path.Clean(c.GetTarget())
		if slices.ContainsFunc(s.GetMounts(), func(m *agboxv1.MountSpec) bool { return path.Clean(m.GetTarget()) == at }) {
			result.Problem([]any{"copies", i, "target"}, "A mount has the target %.200s already: choose another one for the copy", at)
		}
	}
}

// noEmptyWords refuses empty words of a command but the first, which all clients are refused.
func noEmptyWords(result *spec.Result, command []string, at ...any) {
	for i, word := range command {
		if word == "" && i > 0 {
			result.Problem(append(slices.Clone(at), "command", i), "A word of the command is empty: remove it")
		}
	}
}

// inPublishedWords names the fields of problems as the published contract does: its clients
// call services companion containers.
func inPublishedWords(problems []*agboxv1.SpecProblem) []*agboxv1.SpecProblem {
	renamed := make([]*agboxv1.SpecProblem, 0, len(problems))
	for _, p := range problems {
		renamed = append(renamed, &agboxv1.SpecProblem{
			File: p.GetFile(), Line: p.GetLine(), Column: p.GetColumn(),
			Field: companions(p.GetField()), Message: companions(p.GetMessage()),
		})
	}
	return renamed
}

func companions(text string) string {
	return strings.ReplaceAll(text, "services[", "companion_containers[")
}
