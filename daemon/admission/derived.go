package admission

import (
	"fmt"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Derived checks the spec of a sandbox that was derived from that of another one, which was
// admitted. The sources may lead elsewhere by now, and the operator's policy may be another one.
// It does not ask the engine: that has made a sandbox that needs at least as much.
func (c *Controller) Derived(derived *agboxv1.CreateSpec) error {
	var problems []*agboxv1.SpecProblem
	check, bound := c.host, c.host.Bound()
	check.Resolved, check.Thorough = derived.GetSourcesResolved(), true
	for _, p := range check.Spec(derived) {
		// The program may not learn what the paths of the host are by now.
		c.log.Warn("a program has asked for a sandbox with a mount that is refused", "field", fieldName(p.Path), "error", p.Err)
		problems = append(problems, &agboxv1.SpecProblem{
			Field: fieldName(p.Path), Message: "This is refused by now: leave it out, or see the log of the daemon.",
		})
	}
	for _, field := range bound.Forbidden(derived.GetSecurity(), derived.GetGpus()) {
		problems = append(problems, &agboxv1.SpecProblem{
			Field: strings.Join(field, "."), Message: "The operator's policy " + bound.File + " forbids this by now: ask for a sandbox without it, or ask the operator of this machine.",
		})
	}
	if len(problems) > 0 {
		return wrongSpec(problems)
	}
	return nil
}

// fieldName writes the path of a field, as mounts[0].source.
func fieldName(path []any) string {
	var name strings.Builder
	for _, step := range path {
		if i, isIndex := step.(int); isIndex {
			fmt.Fprintf(&name, "[%d]", i)
			continue
		}
		if name.Len() > 0 {
			name.WriteByte('.')
		}
		fmt.Fprint(&name, step)
	}
	return name.String()
}
