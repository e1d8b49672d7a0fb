package spec

import (
	"slices"
	"strings"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// namesTaken are names with another meaning on the sandbox's network.
var namesTaken = []string{"primary", "localhost"}

// services checks each service and the relations between them.
func (r *resolver) services() {
	byName := make(map[string]int)
	for i, s := range r.spec.GetServices() {
		at := []any{"services", i}
		if s.GetImage() == "" && s.GetBuild() == nil && s.GetName() != "" {
			r.problem(append(at, "image"), "Service %s needs an image: write for example 'image: redis:7' or 'build: ./web'", s.GetName())
		}
		r.container(s, at)
		r.serviceTargets(s, at)
		r.entrypoint(s, at)
		r.healthcheck(s.GetHealthcheck(), append(at, "healthcheck"))
		r.oneShot(s, at)
		r.blank(s.GetPostStartOnPrimary(), append(at, "post_start_on_primary")...)
		if s.GetSecurity().GetWritableConfig() {
			r.problem(append(at, "security", "writable_config"), "Services have no mounts: leave it out")
		}
		if s.GetSecurity().GetAllowDangerousMounts() {
			r.problem(append(at, "security", "allow_dangerous_mounts"), "Services have no mounts: leave it out")
		}
		if s.GetSecurity().GetAllowHost() {
			r.problem(append(at, "security", "allow_host"), "All containers of a sandbox share one network: write it under security of the sandbox itself")
		}
		r.serviceName(s.GetName(), i, byName)
	}
	for i, s := range r.spec.GetServices() {
		r.dependencies(s, i, byName)
	}
	r.cycles(byName)
}

// oneShot refuses what needs a service that runs.
func (r *resolver) oneShot(s *agboxv1.ServiceSpec, at []any) {
	if !s.GetOneShot() {
		return
	}
	if len(s.GetPostStartOnPrimary()) > 0 {
		r.problem(append(slices.Clip(at), "post_start_on_primary"), "Service %s is ready when it has ended: write its commands into post_create, or leave one_shot out", s.GetName())
	}
	if test := s.GetHealthcheck().GetTest(); len(test) > 0 && test[0] != "NONE" {
		r.problem(append(slices.Clip(at), "healthcheck"), "Service %s is ready when it has ended with code 0: leave healthcheck or one_shot out", s.GetName())
	}
}

func (r *resolver) serviceName(name string, i int, byName map[string]int) {
	at := []any{"services", i, "name"}
	if name == "" {
		return // reported by the rules
	}
	if before, twice := byName[name]; twice {
		r.problem(at, "There is a service %s already (%s): lists of several files are put one after the other, so rename or remove one of the two", name, r.whereIs([]any{"services", before}))
		return
	}
	byName[name] = i
	switch {
	case slices.Contains(namesTaken, name):
		r.problem(at, "%s is not the name of a service, because it means something else: choose another name", name)
	case name == r.spec.GetName(), name == strings.ToLower(r.spec.GetHostname()):
		r.problem(at, "Service %s would have the host name of the primary: choose another name", name)
	}
}

func (r *resolver) dependencies(s *agboxv1.ServiceSpec, i int, byName map[string]int) {
	seen := make(map[string]bool)
	for j, d := range s.GetDependsOn() {
		at := []any{"services", i, "depends_on", j}
		other, known := byName[d.GetName()]
		switch {
		case d.GetName() == "":
			continue // reported by the rules
		case seen[d.GetName()]:
			r.problem(at, "Service %s depends on %s already: remove one of the two", s.GetName(), d.GetName())
			continue
		case d.GetName() == s.GetName():
			r.problem(at, "Service %s depends on itself: remove that", s.GetName())
			continue
		case d.GetName() == "primary":
			r.problem(at, "Services start before the primary is ready and cannot depend on it: remove that")
			continue
		case !known:
			r.problem(at, "There is no service %.80q to depend on: %s", d.GetName(), r.servicesThereAre(byName))
			continue
		}
		seen[d.GetName()] = true
		r.dependency(s, d, r.spec.GetServices()[other], at)
	}
}

func (r *resolver) dependency(s *agboxv1.ServiceSpec, d *agboxv1.ServiceDependency, on *agboxv1.ServiceSpec, at []any) {
	if s.GetRequired() && !on.GetRequired() {
		r.problem(at, "Service %s is required and depends on %s, which is not: write 'required: true' for %[2]s or 'required: false' for %[1]s", s.GetName(), on.GetName())
	}
	if d.GetCondition() != agboxv1.DependencyCondition_DEPENDENCY_CONDITION_HEALTHY {
		return
	}
	switch test := on.GetHealthcheck().GetTest(); {
	case len(test) > 0 && test[0] == "NONE":
		r.problem(at, "Service %s waits for %s to be healthy, which has its healthcheck switched off: write 'condition: started', or give %[2]s a test", s.GetName(), on.GetName())
	case len(test) == 0:
		r.report.Notice(locate(r.origin, append(at, "condition")...),
			"Service %s waits for %s to be healthy, which has no test here: that relies on a healthcheck of its image", s.GetName(), on.GetName())
	}
}

func (r *resolver) servicesThereAre(byName map[string]int) string {
	if len(byName) == 0 {
		return "there are no services"
	}
	names := make([]string, 0, len(byName))
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	const most = 10
	if len(names) > most {
		names = append(names[:most], "...")
	}
	return "there are " + strings.Join(names, ", ")
}

// cycles reports each cycle of dependencies once, at its first service.
func (r *resolver) cycles(byName map[string]int) {
	const (
		unseen = iota
		open
		done
	)
	state := make([]int, len(r.spec.GetServices()))
	var way []int
	var visit func(i int)
	visit = func(i int) {
		state[i] = open
		way = append(way, i)
		for j, d := range r.spec.GetServices()[i].GetDependsOn() {
			next, known := byName[d.GetName()]
			switch {
			case !known || next == i:
			case state[next] == unseen:
				visit(next)
			case state[next] == open:
				r.cycle(way[slices.Index(way, next):], []any{"services", i, "depends_on", j})
			}
		}
		way = way[:len(way)-1]
		state[i] = done
	}
	for i := range state {
		if state[i] == unseen {
			visit(i)
		}
	}
}

func (r *resolver) cycle(circle []int, at []any) {
	var names []string
	for _, i := range append(slices.Clone(circle), circle[0]) {
		names = append(names, r.spec.GetServices()[i].GetName())
	}
	r.problem(at, "The services depend on each other in a circle (%s): remove one of the dependencies", strings.Join(names, " -> "))
}

// healthcheck applies the engine's own rules.
func (r *resolver) healthcheck(h *agboxv1.HealthcheckConfig, path []any) {
	test := h.GetTest()
	at := append(slices.Clone(path), "test")
	switch {
	case len(test) == 0:
	case test[0] == "NONE" && len(test) > 1:
		r.problem(at, "Behind NONE stands nothing: remove the rest, or write CMD or CMD-SHELL")
	case test[0] == "NONE":
	case test[0] == "CMD-SHELL" && len(test) != 2:
		r.problem(at, "Behind CMD-SHELL stands one string for the shell: write for example [CMD-SHELL, \"pg_isready -U postgres\"]")
	case test[0] == "CMD" && len(test) < 2:
		r.problem(at, "Behind CMD stands a command: write for example [CMD, redis-cli, ping]")
	case test[0] != "CMD" && test[0] != "CMD-SHELL":
		r.problem(at, "A test begins with CMD, CMD-SHELL or NONE, and this one with %.80q: write for example [CMD, redis-cli, ping]", test[0])
	case strings.TrimSpace(test[1]) == "":
		r.problem(at, "The command of the test is empty: write for example [CMD, redis-cli, ping]")
	}
	const (
		leastTime   = time.Millisecond
		mostRetries = 1 << 20
	)
	for _, t := range []struct {
		field string
		value interface{ AsDuration() time.Duration }
		set   bool
	}{
		{"interval", h.GetInterval(), h.GetInterval() != nil},
		{"timeout", h.GetTimeout(), h.GetTimeout() != nil},
		{"start_period", h.GetStartPeriod(), h.GetStartPeriod() != nil},
		{"start_interval", h.GetStartInterval(), h.GetStartInterval() != nil},
	} {
		if d := t.value.AsDuration(); t.set && d != 0 && d < leastTime {
			r.problem(append(slices.Clone(path), t.field), "%v is less than the engine's 1ms: write a longer time, or leave it out", d)
		}
	}
	if h.GetRetries() > mostRetries {
		r.problem(append(slices.Clone(path), "retries"), "%d retries never end: write fewer, for example 3", h.GetRetries())
	}
}
