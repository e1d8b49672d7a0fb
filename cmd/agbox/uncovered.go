package main

import (
	"context"
	"strings"

	"github.com/agbox/agbox/client"
)

// maxUncovered is how many files are named.
const maxUncovered = 10

// tellUncovered names what came into the mounts of a sandbox and has no cover. A command on
// the host, such as git status, could execute it. It is a word beside a command, so it says
// nothing if the daemon cannot tell.
func (a *app) tellUncovered(ctx context.Context, c *client.Client, id string) {
	ctx, cancel := context.WithTimeout(ctx, guardWithin)
	defer cancel()
	u, err := c.Uncovered(ctx, id)
	if err != nil {
		return
	}
	if len(u.Paths) > 0 {
		a.say("Look at these before you use git or another program there. They came into a mounted folder after the sandbox was made, so it can have written them, and this machine executes what they say or agbox reads it:")
		for i, p := range u.Paths {
			if i == maxUncovered {
				a.sayEach("  and " + plural(len(u.Paths)-i, "other", "others"))
				break
			}
			p = printable(p)
			if strings.HasSuffix(p, "/.git") {
				p += "  (a repository: git executes its settings and hooks, also in the folders above it)"
			}
			a.sayEach("  " + p)
		}
	}
	for _, p := range u.NotSearched {
		a.say("Only a part of %s was searched for repositories of git, because it is too large, or agboxd may not read all of it.", printable(p))
	}
}
