package admission

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
)

// abilitiesWithin bounds the query of the engine's abilities.
const abilitiesWithin = 3 * time.Second

// demanding has what a primary and a service may demand of the engine.
type demanding interface {
	GetCpuLimit() string
	GetDiskLimit() string
	GetGpus() string
	GetSecurity() *agboxv1.SecuritySpec
}

// feasible adds the problems that this engine and this host have with a resolved spec. If
// the engine does not answer, feasible adds none: the engine reports them when something
// is made.
func (c *Controller) feasible(ctx context.Context, result *spec.Result) {
	resolved := result.Draft()
	if resolved == nil || !demands(resolved) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, abilitiesWithin)
	defer cancel()
	engine, err := c.o.Engine.Abilities(ctx)
	if err != nil {
		c.o.Log.Debug("the engine does not say what it can do", "error", err)
		return
	}
	fits(result, engine, resolved, nil)
	for i, service := range resolved.GetServices() {
		path := []any{"services", i}
		fits(result, engine, service, path)
		if service.GetHealthcheck().GetStartInterval() != nil && !engine.StartInterval {
			result.Notice([]any{"services", i, "healthcheck", "start_interval"}, "start_interval has no effect: this engine does not know it (Docker 25 does), and interval counts instead")
		}
	}
}

// demands reports whether a spec needs anything that not every engine supports.
func demands(resolved *agboxv1.CreateSpec) bool {
	asks := func(c demanding) bool {
		return c.GetCpuLimit() != "" || c.GetDiskLimit() != "" || c.GetGpus() != "" || len(c.GetSecurity().GetDevices()) > 0
	}
	return asks(resolved) || slices.ContainsFunc(resolved.GetServices(), func(service *agboxv1.ServiceSpec) bool {
		return asks(service) || service.GetHealthcheck().GetStartInterval() != nil
	})
}

func fits(result *spec.Result, engine runtime.Abilities, c demanding, path []any) {
	at := func(steps ...any) []any { return slices.Concat(path, steps) }
	if nano, err := document.ParseCPUs(c.GetCpuLimit()); c.GetCpuLimit() != "" && err == nil && engine.CPUs > 0 && nano > int64(engine.CPUs)*1e9 {
		result.Problem(at("cpu_limit"), "%q is more than the %d processors of the engine: write %[2]d or less", c.GetCpuLimit(), engine.CPUs)
	}
	if c.GetDiskLimit() != "" && engine.NoDiskLimit != "" {
		result.Problem(at("disk_limit"), "The engine cannot limit the size of a container, because %s: leave it out", engine.NoDiskLimit)
	}
	if c.GetGpus() != "" && engine.NoGPUs != "" {
		result.Problem(at("gpus"), "The engine cannot give a GPU to a container, because %s: install it, or leave gpus out", engine.NoGPUs)
	}
	if !engine.Local {
		return
	}
	for i, device := range c.GetSecurity().GetDevices() {
		if _, err := os.Stat(device); err != nil {
			result.Problem(at("security", "devices", i), "The host has no device %s: load its driver, or leave it out", device)
		}
	}
}

// keepsIDs adds a notice if the user will not get the ids of the owner of the folder that
// match_user names, and cannot write there.
func keepsIDs(result *spec.Result, resolved *agboxv1.CreateSpec) {
	name, _, _ := strings.Cut(resolved.GetUser(), ":")
	source := spec.OnHost(resolved, resolved.GetMatchUser())
	if source == "" || name == "" || name == "root" {
		return
	}
	info, err := os.Stat(source)
	if err != nil {
		return // reported elsewhere
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	id, err := strconv.ParseUint(name, 10, 32)
	number := err == nil
	switch {
	case number && (id == 0 || uint32(id) == owner.Uid):
	case owner.Uid == 0:
		result.Notice([]any{"user"}, "The user %s may be unable to write %s, because it belongs to root: give the folder to another user, or write the user root", name, source)
	case number:
		result.Notice([]any{"user"}, "The user %s is a number, so it does not get the id of the owner of %s and may be unable to write it: write its name, or the number %d", name, source, owner.Uid)
	case resolved.GetSecurity().GetReadOnlyRoot():
		result.Notice([]any{"user"}, "The user %s may be unable to write %s, because its id cannot be changed in a root that is read-only: write the number %d", name, source, owner.Uid)
	}
}

// forbidden adds to a resolved spec what the operator's policy lets nobody ask for.
func (c *Controller) forbidden(result *spec.Result, resolved *agboxv1.CreateSpec) {
	bound := c.o.Host.Bound()
	look := func(s *agboxv1.SecuritySpec, gpus string, path ...any) {
		for _, field := range bound.Forbidden(s, gpus) {
			whole := append([]any(nil), path...)
			for _, name := range field {
				whole = append(whole, name)
			}
			result.Problem(whole, "The operator's policy %s forbids this: leave it out, or ask the operator of this machine", bound.File)
		}
	}
	look(resolved.GetSecurity(), resolved.GetGpus())
	for i, s := range resolved.GetServices() {
		look(s.GetSecurity(), s.GetGpus(), "services", i)
	}
}
