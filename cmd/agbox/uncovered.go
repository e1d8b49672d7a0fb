package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/covers"
)

// maxUncovered is how many files are named, and uncoveredWithin bounds the look for them: a mount may
// not answer.
const (
	maxUncovered    = 10
	uncoveredWithin = 10 * time.Second
)

// tellUncovered names what came into the mounts of a sandbox and has no cover. A command on
// the host, such as git status, could execute it. It is a word beside a command, so it says
// nothing if the daemon cannot tell. It returns those that git takes for repositories.
func (a *app) tellUncovered(ctx context.Context, c *client.Client, id string) (repositories []string) {
	ctx, cancel := context.WithTimeout(ctx, uncoveredWithin)
	defer cancel()
	u, err := c.Uncovered(ctx, id)
	if err != nil {
		return nil
	}
	repositories = slices.DeleteFunc(slices.Clone(u.Paths), func(p string) bool { return !ofGit(p) })
	if len(u.Paths) > 0 {
		a.say("Look at these before you use git or another program there. They came into a mounted folder after the sandbox was made, so it can have written them, and this machine executes what they say or agbox reads it:")
		for i, p := range u.Paths {
			if i == maxUncovered {
				a.sayEach("  and " + plural(len(u.Paths)-i, "other", "others"))
				break
			}
			line := printable(p)
			if ofGit(p) {
				line += "  (a repository: git executes its settings and hooks, also in the folders above it)"
			}
			a.sayEach("  " + line)
		}
	}
	for _, p := range u.NotSearched {
		a.say("Only a part of %s was searched for repositories of git, because it is too large, or agboxd may not read all of it.", printable(p))
	}
	return repositories
}

// ofGit reports whether git takes a path of this machine for a repository, or for the file
// that names one.
func ofGit(p string) bool {
	return filepath.Base(p) == ".git" || covers.Repository(func(name string) bool {
		_, err := os.Lstat(filepath.Join(p, name))
		return err == nil
	})
}

// mayLeave asks, or refuses without a terminal, before the removal of a sandbox that has left
// repositories in a mounted folder: what it has left is known only while it exists.
func (a *app) mayLeave(ctx context.Context, h *agboxv1.SandboxHandle, repositories []string) error {
	name := cmp.Or(h.GetName(), h.GetSandboxId())
	text := fmt.Sprintf("Sandbox %s may have left %s of git, see above.", name, plural(len(repositories), "repository", "repositories"))
	if a.terminal() == nil {
		return &client.Error{Code: codes.FailedPrecondition, Message: text + fmt.Sprintf(" Look at it first: `agbox rm -f %s` removes the sandbox anyway.", name)}
	}
	a.say("%s", text)
	yes, err := a.confirm(ctx, "Remove the sandbox anyway?")
	if err == nil && !yes {
		err = &client.Error{Code: codes.FailedPrecondition, Message: fmt.Sprintf("Sandbox %s stays.", name)}
	}
	return err
}
