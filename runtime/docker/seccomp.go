package docker

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/docker/docker/client"
	"github.com/moby/profiles/seccomp"

	"github.com/agbox/agbox/runtime"
)

// refusedCalls are left out of the default profile of current engines, from which ours
// is made. That profile refuses io_uring and sockets of AF_VSOCK and AF_ALG, which the
// defaults of engines before 24 and 25 let through. But 32-bit programs reach such
// sockets through socketcall, whose arguments a filter cannot see. C libraries of the
// last ten years do not use it.
var refusedCalls = []string{"socketcall"}

// profile is our seccomp profile in the engine's notation.
var profile = sync.OnceValues(func() (string, error) {
	p := seccomp.DefaultProfile()
	for _, rule := range p.Syscalls {
		rule.Names = slices.DeleteFunc(slices.Clone(rule.Names), func(name string) bool { return slices.Contains(refusedCalls, name) })
	}
	raw, err := json.Marshal(p)
	return string(raw), err
})

// filtering is what an engine says about seccomp.
type filtering struct {
	// cli is the client that asked. After a lost connection there is a new one.
	cli *client.Client
	// builtin is true if the engine filters with the profile that it was built with. An
	// engine whose kernel cannot filter would refuse a profile, and a profile that the
	// operator gave the engine stays in force.
	builtin bool
}

// seccompOptions are the security options that set our profile, if it is to be set.
func (e *Engine) seccompOptions(ctx context.Context, cli *client.Client, s runtime.Security) ([]string, error) {
	if s.Privileged || s.SeccompUnconfined {
		return nil, nil
	}
	known := e.filtering.Load()
	if known == nil || known.cli != cli {
		info, err := cli.Info(ctx)
		if err != nil {
			return nil, err
		}
		known = &filtering{cli: cli, builtin: slices.ContainsFunc(info.SecurityOptions, builtinSeccomp)}
		e.filtering.Store(known)
	}
	if !known.builtin {
		return nil, nil
	}
	text, err := profile()
	return []string{"seccomp=" + text}, err
}

// builtinSeccomp reports whether a security option of the engine says that it filters
// with its own profile. Engines before 23 call that profile "default".
func builtinSeccomp(option string) bool {
	fields := strings.Split(option, ",")
	return slices.Contains(fields, "name=seccomp") &&
		(slices.Contains(fields, "profile=builtin") || slices.Contains(fields, "profile=default"))
}
