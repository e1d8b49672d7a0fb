package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/covers"
	"github.com/agbox/agbox/workspace/gitignore"
)

// guardWithin bounds the look at what a removal would lose. A frozen sandbox does not answer; one on a
// busy machine, with some repositories to read, has answered after 10 seconds.
const guardWithin = 30 * time.Second

// namedLosses is how many files, commands and agents are named.
const namedLosses = 5

// loss is what the removal of a sandbox would lose.
type loss struct {
	// work is part of a sentence about changes that were never brought back; empty if there
	// are none. hidden is why they cannot be seen.
	work, hidden string
	// commits is part of a sentence about commits that were not brought back. head is set if
	// HEAD has some, others if other branches have, tags if other references have, unread if
	// they cannot all be read, and alone if agbox brings none, because none was copied in.
	commits                           string
	head, others, tags, unread, alone bool
	// stash is part of a sentence about what was put aside by git stash.
	stash string
	// marked is part of a sentence about markers in the folder that only the sandbox can take away.
	marked string
	// nested are the repositories below the top of the workspace that have commits or a stash.
	nested []string
	// unshown is part of a sentence about work that no change shows, and how sentences about it.
	unshown, how string
	// large is set if some are too large for "agbox apply", and refused if git refuses the names of some.
	large, refused bool
	// commands is part of a sentence about running commands besides the main command.
	commands string
}

func (l loss) none() bool {
	return l.work == "" && l.unshown == "" && l.commits == "" && l.stash == "" && l.marked == "" && l.commands == ""
}

// String is the end of a sentence.
func (l loss) String() string {
	return strings.Join(slices.DeleteFunc([]string{l.work + l.hidden, l.unshown, l.commits, l.stash, l.marked, l.commands}, func(s string) bool { return s == "" }), " and ")
}

// home is the beginning of a sentence about what is known not to be brought home; empty if that
// is nothing.
func (l loss) home() string {
	var all []string
	if l.hidden == "" && l.work != "" {
		all = append(all, l.work)
	}
	if !l.unread && l.commits != "" {
		all = append(all, l.commits)
	}
	if l.stash != "" {
		all = append(all, l.stash)
	}
	return strings.Join(all, " and ")
}

// ofRemoving says what the removal of a sandbox would lose, and how to keep it.
func (l loss) ofRemoving(sandbox string) string {
	return strings.TrimSpace(fmt.Sprintf("Removing sandbox %s would lose %s. %s", sandbox, l, l.advice(sandbox)))
}

// advice says how to keep what would be lost.
func (l loss) advice(sandbox string) string {
	var s []string
	switch {
	case l.hidden != "":
		s = append(s, fmt.Sprintf("`agbox diff %s` tries again.", sandbox))
	case l.work != "":
		s = append(s, fmt.Sprintf("`agbox diff %s` shows the changes, `agbox apply %[1]s` brings them back.", sandbox))
	}
	switch {
	case l.bundled():
		s = append(s, bundle(sandbox, "", l.alone))
	case l.others:
		s = append(s, fmt.Sprintf("`agbox exec %s -- git switch --ignore-other-worktrees BRANCH` goes to one of its branches. Then `agbox apply %[1]s --branch NAME` brings the commits. If git refuses that, %[2]s", sandbox, bundle(sandbox, "", false)))
	case l.head && !l.unread:
		s = append(s, fmt.Sprintf("`agbox apply %s --branch NAME` brings the commits.", sandbox))
	}
	if len(l.nested) > 0 {
		s = append(s, bundle(sandbox, l.nested[0], l.alone))
	}
	if l.stash != "" {
		s = append(s, fmt.Sprintf("`agbox exec %s -- git stash pop` takes the newest stash back, for `agbox apply %[1]s`. If that conflicts, git keeps the stash: resolve the files in the sandbox first, or `agbox exec %[1]s -- git stash show -p --binary --include-untracked >FILE` writes it as a patch.", sandbox))
	}
	switch {
	case l.large && l.refused:
		s = append(s, "It says how files come that are too large, or whose names git refuses.")
	case l.large:
		s = append(s, "It says how files come that are too large.")
	case l.refused:
		s = append(s, "It says how files come whose names git refuses.")
	}
	if l.how != "" {
		s = append(s, l.how)
	}
	if l.marked != "" {
		s = append(s, fmt.Sprintf("`agbox apply %s --abort` puts the files back as they were.", sandbox))
	}
	if l.commands != "" {
		s = append(s, fmt.Sprintf("`agbox ps %s` lists the commands.", sandbox))
	}
	return strings.Join(s, " ")
}

// bundled reports whether commits come by a bundle of git only.
func (l loss) bundled() bool { return l.alone && (l.head || l.others) || l.tags }

// bundle says how the commits of a repository come, which may be nested. bare is set if the folder may
// have no repository that takes them.
func bundle(sandbox, nested string, bare bool) string {
	words, what, in := "git", "the commits", "in the folder"
	if nested != "" {
		words += " -C " + shellWords([]string{nested})
		what += " of " + printable(nested) + " and its newest stash"
	}
	if bare {
		in += " (after `git init`, if git has no repository there)"
	}
	create, fetch := gitignore.Bundle(sandbox, words, nested)
	return fmt.Sprintf("`agbox exec %s -- %s`, `agbox cp %[1]s:%[3]s FILE` and %[4]s `%[5]s` bring %[6]s.", sandbox, create, gitignore.BundleName, in, fetch, what)
}

// losses returns what the removal of a sandbox would lose: changed files and commits that were
// never brought back, and running commands besides the main command.
func losses(ctx context.Context, c *client.Client, h *agboxv1.SandboxHandle) (l loss, err error) {
	if l, err = lostWork(ctx, c, h); err != nil || h.GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY {
		return l, err
	}
	execs, err := c.ListActiveExecs(ctx, h.GetSandboxId())
	if err != nil {
		return l, err
	}
	var active []string
	for _, e := range execs {
		if !e.GetMain() {
			active = append(active, cut(printable(shellWords(e.GetCommand())), 40))
		}
	}
	if len(active) > 0 {
		l.commands = plural(len(active), "running command", "running commands") + " (" + some(active) + ")"
	}
	return l, nil
}

// lostWork returns which changed files and commits were never brought back.
func lostWork(ctx context.Context, c *client.Client, h *agboxv1.SandboxHandle) (l loss, err error) {
	if h.GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY && !slices.Contains(resting, h.GetState()) {
		return l, nil // it is being made or removed
	}
	look, cancel := context.WithTimeout(ctx, guardWithin)
	defer cancel()
	w, err := c.Work(look, h.GetSandboxId(), client.WorkOptions{NamesOnly: true, Removal: true})
	switch {
	case ctx.Err() != nil:
		return l, ctx.Err()
	case hasReason(err, agboxv1.ErrorReason_WORKSPACE_HAS_NO_BASE), hasReason(err, agboxv1.ErrorReason_PRIMARY_MISSING), hasCode(err, codes.Unimplemented):
		return l, nil // a daemon without bases has nothing to compare with, and without a container there is nothing
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrDaemonUnreachable):
		return l, err
	case err != nil:
		return hiddenWork(look, err), nil
	}
	defer w.Close()
	for _, change := range w.Large {
		refused := client.RefusedName(change.Path)
		l.large, l.refused = l.large || !refused, l.refused || refused
	}
	if all := append(w.Changes, w.Large...); len(all) > 0 {
		names := collect(all, func(change client.WorkChange) string { return printable(change.Path) })
		l.work = plural(len(names), "changed file", "changed files") + " (" + some(names) + ")"
	}
	var unshown, how []string
	for _, one := range w.Unshown {
		unshown, how = append(unshown, printable(one.What)), append(how, printable(one.Advice))
	}
	l.unshown, l.how = strings.Join(unshown, " and "), strings.Join(how, " ")
	if names, err := w.Unresolved(look, h.GetSandboxId()); err == nil && len(names) > 0 { // a folder that is gone has none
		l.marked = "the way back from the markers of " + plural(len(names), "conflict", "conflicts") + " in the folder (" + some(collect(names, printable)) + ")"
	}
	l.alone = w.Copied() == ""
	commits, err := c.NewCommits(look, h.GetSandboxId(), w)
	l.lostCommits(look, commits, err)
	return l, ctx.Err()
}

// lostCommits notes the commits that were not brought back, and why not all of them are known.
func (l *loss) lostCommits(look context.Context, all []client.BranchCommit, why error) {
	var parts, others, tags []string
	stashes := 0
	for _, one := range all {
		switch {
		case one.Repository != "":
			if !slices.Contains(l.nested, one.Repository) {
				l.nested = append(l.nested, one.Repository)
			}
		case one.Other:
			tags = append(tags, fmt.Sprintf("%s up to %.12s", printable(one.Branch), one.Commit))
		case one.Stash:
			stashes++
		case one.Branch == "":
			l.head = true
			parts = append(parts, fmt.Sprintf("its commits up to %.12s", one.Commit))
		default:
			others = append(others, fmt.Sprintf("%s up to %.12s", printable(one.Branch), one.Commit))
		}
	}
	if stashes > 0 {
		l.stash = plural(stashes, "stash", "stashes") + " of git"
	}
	if l.others = len(others) > 0; l.others {
		parts = append(parts, "commits of "+plural(len(others), "other branch", "other branches")+" ("+some(others)+")")
	}
	if l.tags = len(tags) > 0; l.tags {
		parts = append(parts, "commits of "+plural(len(tags), "tag or other reference", "tags or other references")+" ("+some(tags)+")")
	}
	if len(l.nested) > 0 {
		parts = append(parts, "commits or stashes of "+plural(len(l.nested), "nested repository", "nested repositories")+" ("+some(collect(l.nested, printable))+")")
	}
	if l.unread = why != nil; l.unread {
		parts = append(parts, "any commits that are not brought back, which could not "+whyNot(look, "read", why))
	}
	l.commits = strings.Join(parts, " and ")
}

// whyNot is the end of a sentence about what could not be read or compared.
func whyNot(look context.Context, what string, why error) string {
	if look.Err() != nil {
		return fmt.Sprintf("be %s within %s", what, guardWithin)
	}
	return fmt.Sprintf("be %s (%s)", what, strings.TrimSuffix(why.Error(), "."))
}

// hiddenWork is the loss of a sandbox whose workspace cannot be compared.
func hiddenWork(look context.Context, why error) loss {
	return loss{work: "any changes to its copied workspace", hidden: ", which could not " + whyNot(look, "compared", why)}
}

// some lists the first of some names.
func some(names []string) string {
	if len(names) > namedLosses {
		return strings.Join(names[:namedLosses], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}

// remove deletes a sandbox that is meant, because a person named it, loses nothing by it and has
// left no repositories. Otherwise it asks on a terminal and refuses elsewhere. A sandbox with
// living agents is always refused.
func (a *app) remove(ctx context.Context, c *client.Client, id string, meant, keepLogs bool) error {
	out, err := c.GetSandbox(ctx, id)
	if err != nil {
		return err
	}
	h := out.GetSandbox()
	if err := sparesAgents(ctx, c, h); err != nil {
		return err
	}
	lost, err := losses(ctx, c, h)
	if err != nil {
		return err
	}
	if !lost.none() {
		if err := a.mayLose(ctx, h, lost, "agbox rm -f "+cmp.Or(h.GetName(), id)); err != nil {
			return err
		}
		meant = true
	}
	if repositories := a.tellUncovered(ctx, c, id); len(repositories) > 0 {
		if err := a.mayLeave(ctx, h, repositories); err != nil {
			return err
		}
		meant = true
	}
	if !meant {
		if err := a.confirmRemoval(ctx, nameOf(h), "Remove sandbox "+nameOf(h)+"?"); err != nil {
			return err
		}
	}
	return c.DeleteSandboxWith(ctx, id, client.DeleteOptions{SpareAgents: true, RemoveLogs: !keepLogs})
}

// mayLose asks about what the removal of a sandbox would lose. force is the command that does not ask.
func (a *app) mayLose(ctx context.Context, h *agboxv1.SandboxHandle, lost loss, force string) error {
	name := nameOf(h)
	text := lost.ofRemoving(name)
	if a.terminal() == nil {
		return &client.Error{Code: codes.FailedPrecondition, Message: text + fmt.Sprintf(" `%s` removes it anyway.", force)}
	}
	a.say("%s", text)
	return a.confirmRemoval(ctx, name, "Remove it anyway?")
}

// confirmRemoval asks whether to remove a sandbox. The answer no is an error.
func (a *app) confirmRemoval(ctx context.Context, name, question string) error {
	yes, err := a.confirm(ctx, question)
	if err == nil && !yes {
		err = &client.Error{Code: codes.FailedPrecondition, Message: fmt.Sprintf("Sandbox %s stays.", name)}
	}
	return err
}

// tellOfLosses says what the removal of each sandbox would lose, and what each may have left.
func (a *app) tellOfLosses(ctx context.Context, c *client.Client, list []*agboxv1.SandboxHandle) error {
	for _, h := range list {
		lost, err := losses(ctx, c, h)
		if err != nil && !errors.Is(err, client.ErrNotFound) {
			return err
		}
		if name := nameOf(h); !lost.none() {
			a.say("%s", lost.ofRemoving(name))
		}
		a.tellUncovered(ctx, c, h.GetSandboxId())
	}
	return nil
}

// sparesAgents refuses a sandbox with agents that have not ended, as the daemon does. It
// comes before any other question about the sandbox: the answer could not remove it.
func sparesAgents(ctx context.Context, c *client.Client, h *agboxv1.SandboxHandle) error {
	agents, err := c.ListAgents(ctx, &agboxv1.ListAgentsRequest{SandboxId: h.GetSandboxId()})
	if hasCode(err, codes.Unimplemented) {
		return nil // a daemon without agents
	}
	if err != nil || len(agents) == 0 {
		return err
	}
	names := collect(agents, func(g *agboxv1.Agent) string { return agentName(g) })
	return &client.Error{
		Code: codes.FailedPrecondition, Reason: agboxv1.ErrorReason_SANDBOX_HAS_AGENTS.String(),
		Message: fmt.Sprintf("In sandbox %s there are agents that have not ended: %s. End them with \"agbox agent kill\", or remove the sandbox with \"agbox rm -f\".",
			nameOf(h), some(names)),
	}
}

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
	name := nameOf(h)
	text := fmt.Sprintf("Sandbox %s may have left %s of git, see above.", name, plural(len(repositories), "repository", "repositories"))
	if a.terminal() == nil {
		return &client.Error{Code: codes.FailedPrecondition, Message: text + fmt.Sprintf(" Look at it first: `agbox rm -f %s` removes the sandbox anyway.", name)}
	}
	a.say("%s", text)
	return a.confirmRemoval(ctx, name, "Remove the sandbox anyway?")
}
