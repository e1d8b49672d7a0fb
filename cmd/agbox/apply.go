package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/workspace/edits"
)

// shownCommits is how many commits of a sandbox are shown.
const shownCommits = 20

type applyOptions struct {
	client.ApplyOptions
	executables
	pull bool
}

func (a *app) applyCommand() *cobra.Command {
	var o applyOptions
	var dash int
	cmd := &cobra.Command{
		Use:   "apply [SANDBOX] [PATH...] [flags]",
		Short: "Merge what a sandbox changed into the folder it came from",
		Long: `Merge what a sandbox, or that of this folder, changed in its workspace into the folder that
was copied in. Names of files, and a PATH that is not absolute, are relative to where you stand
in that folder, else to its root. Without SANDBOX, write -- before PATH. The folder may have
changed meanwhile: lines that both sides changed are marked as git does, and files that cannot
be merged keep the folder's version. Then the exit code is 1.

Such a conflict counts as changed until it is resolved: the next "agbox apply" finds no
markers, and something of the sandbox's version. A file that is again what it was gets the
change again. --abort puts files with markers back as they were, --again brings conflicts
anew, and --continue says that the folder's files without markers are the result, if an
earlier call has shown the conflict with the sandbox's version of now.

What was brought back no longer counts as changed: the next "agbox diff" shows only what
is new. Commits come with --branch; without it their files do, and "agbox rm" still names the
commits if the sandbox has changed their files since. If agbox is killed, the folder is as
before, or each file is as before or as after, and the next "agbox apply" completes the work
and says so.

With --branch, the work becomes a commit on a branch of the folder's git repository, on top of
the branch, or of HEAD if it is new. Commits that the sandbox made on top of the one that was
copied come as they are, after checks, and what is not committed as one more. Then a new branch
is what the sandbox has, without what HEAD has got since; if the branch has other commits, one
more joins both. --squash makes one commit of all, and so do PATHs, or a history that the
sandbox has rewritten. The files and the index stay as they are. If there are conflicts,
no commit is made. The branch gets what git stores of a file, with ends
of lines and filters such as git-lfs as you have set them up. A filter that only the settings
of the repository define needs --yes-executable. Changed files that git ignores or does not
track stay out of the branch, and are named. "agbox diff" and "agbox rm" then count the work as
brought back, as long as a branch, a tag or another reference of the repository has the commit;
one that is amended or rebased is another commit: then the work counts if the folder has it. What
is on a branch only, "agbox sync" and "agbox apply" bring to the folder.

Files that programs of this machine execute because they are there, that agents read as
instructions or agbox reads next, and whatever git takes for a repository, are shown first
and asked about. Without a terminal they are left out, named, and the exit code is 1;
--yes-executable brings them. docs/security.md lists them.

The sandbox may be stopped; it is not started. Nothing is written outside of the folder,
through a link or inside .git, and no file gets setuid or setgid. Merging lines and
--branch need git.`,
		Example: `  agbox apply demo
  agbox apply demo src/main.go --check
  agbox apply demo src/main.go --abort
  agbox apply demo --branch fix -m "Fix the test"`,
		Args:              dashAt(&dash),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if o.Message != "" && o.Branch == "" {
				return usagef("-m is the message of a commit: name its branch with --branch.")
			}
			if o.Squash && o.Branch == "" {
				return usagef("--squash is about commits: name their branch with --branch.")
			}
			if count(o.Abort, o.Again, o.Continue, o.Branch != "") > 1 {
				return usagef("Use one of --abort, --again, --continue and --branch.")
			}
			return o.run(ctx, a, c, args, dash)
		}),
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Branch == "" && cmd.Flags().Changed("branch") {
			return usagef("--branch needs the name of a branch.")
		}
		return run(cmd, args)
	}
	f := cmd.Flags()
	f.BoolVar(&o.Abort, "abort", false, "put files with conflict markers back as they were")
	f.BoolVar(&o.Again, "again", false, "bring conflicts that have markers again")
	f.BoolVar(&o.Continue, "continue", false, "say that files without markers are resolved as they are")
	f.StringVarP(&o.Branch, "branch", "b", "", "commit on the branch `NAME`; do not touch files")
	f.StringVarP(&o.Message, "message", "m", "", "`MESSAGE` of the commit")
	f.BoolVar(&o.Squash, "squash", false, "with --branch, make one commit of the sandbox's commits too")
	o.addFlags(cmd)
	return cmd
}

func (a *app) pullCommand() *cobra.Command {
	o := applyOptions{pull: true, ApplyOptions: client.ApplyOptions{NoMerge: true}}
	var dash int
	cmd := &cobra.Command{
		Use:   "pull [SANDBOX] [PATH...] [flags]",
		Short: "Bring what a sandbox changed to the folder it came from, without merging",
		Long: `Bring what a sandbox, or that of this folder, changed in its workspace to the folder that
was copied in, if the folder still has all those files as they were copied. Otherwise
nothing is changed, and the exit code is 1: "agbox apply" merges. Other files of the
folder may have changed.
It asks about what this machine executes, as "agbox apply" does.

"agbox image pull" pulls images.`,
		Example: `  agbox pull demo
  agbox pull demo docs`,
		Args:              dashAt(&dash),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return o.run(ctx, a, c, args, dash)
		}),
	}
	o.addFlags(cmd)
	return cmd
}

func (o *applyOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&o.All, "all", "a", false, "also bring new files that are ignored")
	f.BoolVar(&o.Check, "check", false, "only say what would happen")
	f.BoolVar(&o.Check, "dry-run", false, "same as --check")
	o.executables.addFlag(cmd)
}

func (o *applyOptions) run(ctx context.Context, a *app, c *client.Client, args []string, dash int) error {
	sandbox, paths, err := a.sandboxAndPaths(ctx, c, args, dash, changes)
	if err != nil {
		return err
	}
	o.Paths, o.Here = paths, here(".")
	if o.Branch != "" {
		o.Message = cmp.Or(o.Message, "Work of sandbox "+sandbox)
	}
	id, err := a.sandbox(ctx, c, sandbox, changes)
	if err != nil {
		return err
	}
	o.Filters = o.yes
	o.Agree = func(ctx context.Context, folder string, found []client.Executable) (bool, error) {
		return o.ask(ctx, a, folder, called(edits.PlaceIn(folder, o.Here), found))
	}
	if !o.Check {
		a.goesOn.is("Nothing goes on. Each file of the folder is as before or as after, and the next `agbox apply` completes what was begun.")
	}
	done, err := c.ApplyWork(ctx, id, o.ApplyOptions)
	if err != nil {
		return err
	}
	place := edits.PlaceIn(done.Folder, o.Here)
	if o.Check && len(done.Executable) > 0 {
		a.showExecutables(done.Folder, called(place, done.Executable))
	}
	if done.Resumed {
		a.say("An earlier `agbox apply` or `agbox pull` did not end. Its work is complete now.")
	}
	if done.OldStage {
		a.say("%s/.agbox-apply is not used: agbox keeps what it has to finish in its data folder now. If an older agbox was killed there, look at the files in it, then remove it.", printable(done.Folder))
	}
	if done.Rewritten {
		a.say("The sandbox has commits, but not on top of one that was copied and that %s still has: all its work is one commit. %s", printable(done.Folder), bundle(sandbox, "", false))
	}
	for i, one := range done.Commits {
		if i == shownCommits {
			a.sayEach("  and " + plural(len(done.Commits)-i, "other", "others"))
			break
		}
		if i == 0 {
			a.say("%s of the sandbox, whose authors and dates are what it says:", plural(len(done.Commits), "commit", "commits"))
		}
		a.sayEach(fmt.Sprintf("  %.12s %s", one.ID, printable(one.Subject)))
	}
	if err := o.tell(a, done); err != nil {
		return err
	}
	for _, path := range done.Resolved {
		a.say("The conflict in %s is resolved.", printable(place.Name(path)))
	}
	return o.conclude(a, sandbox, done)
}

// conclude sums up, and returns what the exit code tells.
func (o *applyOptions) conclude(a *app, sandbox string, done client.AppliedWork) error {
	conflicts := done.Conflicts()
	merged := 0
	for _, one := range done.Outcomes {
		if one.Kind == edits.Merged {
			merged++
		}
	}
	o.tellAside(a, sandbox, done)
	left := !o.Check && len(done.Executable) > 0
	if left {
		a.say("%s left out: see `agbox diff %[2]s`. `%[3]s %[2]s --yes-executable` brings them.", wereExecutables(done.Executable), sandbox, o.command())
	}
	a.sayLarge(sandbox, done.Target, done.Folder, done.Large)
	switch {
	case o.pull && conflicts+merged > 0 && !done.Changed:
		a.say("Nothing was changed in %s: both sides have changed %s. `agbox apply %s` merges them.", done.Folder, plural(conflicts+merged, "file", "files"), sandbox)
		return exitStatus(codeFailure)
	case conflicts > 0 && o.Branch != "":
		a.say("No commit was made: %s. %s", plural(conflicts, "conflict", "conflicts"), o.adviceForBranch(sandbox, done, conflicts))
		return exitStatus(codeFailure)
	case conflicts > 0 && o.Abort:
		a.say("%s left: edit the files above until they have no markers, then `agbox apply %s --continue` keeps them as they are.", plural(conflicts, "conflict", "conflicts"), sandbox)
		return exitStatus(codeFailure)
	case conflicts > 0 && o.Check:
		a.say("%s%s.", plural(conflicts, "conflict", "conflicts"), wouldBring(sandbox, done.Outcomes))
		return exitStatus(codeFailure)
	case conflicts > 0:
		a.say("%s: look at the files above. Then `agbox apply %s` again; --continue keeps files without markers as they are, --abort puts files back whose markers you have not touched.", plural(conflicts, "conflict", "conflicts"), sandbox)
		return exitStatus(codeFailure)
	case len(done.Outcomes)+len(done.Resolved) == 0 && (o.Abort || o.Continue):
		a.say("There are no conflicts of sandbox %s.", sandbox)
	case len(done.Outcomes)+len(done.Resolved)+len(done.AtHome)+len(done.Outside)+len(done.Refused)+len(done.Unfit)+len(done.Submodules)+len(done.Commits)+len(done.Large) == 0 && !left:
		a.say("There is nothing new in sandbox %s.", sandbox)
	case done.Commit != "":
		a.say("Branch %s has the work as commit %.12s.", o.Branch, done.Commit)
	case o.Branch != "" && !o.Check && done.Tip == "" && !done.NoBranch && len(done.Outcomes)+len(done.AtHome) > 0:
		a.say("No branch was made: it would have nothing new.")
	case o.Branch != "" && !o.Check && len(done.Outcomes) > 0:
		a.say("Branch %s has the work already.", o.Branch)
	}
	if left || len(done.Large) > 0 || done.NoBranch {
		return exitStatus(codeFailure)
	}
	return nil
}

// wouldBring is the end of a sentence about what a call brings in spite of conflicts.
func wouldBring(sandbox string, all []client.WorkOutcome) string {
	var does []string
	if slices.ContainsFunc(all, func(one client.WorkOutcome) bool { return !one.Conflict() && one.Kind != edits.Already }) {
		does = append(does, "brings the rest")
	}
	if slices.ContainsFunc(all, func(one client.WorkOutcome) bool { return one.Kind == edits.Marked }) {
		does = append(does, "writes markers into files of text")
	}
	if len(does) == 0 {
		return ""
	}
	return fmt.Sprintf(". `agbox apply %s` %s", sandbox, strings.Join(does, ", and "))
}

// tellAside names what is on no branch.
func (o *applyOptions) tellAside(a *app, sandbox string, done client.AppliedWork) {
	if len(done.Outside) > 0 {
		a.say("Not on the branch, because git does not track them: %s. `agbox apply %s` without --branch brings them.", outsides(done.Outside), sandbox)
	}
	if len(done.Refused) > 0 {
		a.say("Not on the branch, because git refuses such names: %s. `agbox apply %s` without --branch brings them.", outsides(done.Refused), sandbox)
	}
	if len(done.Unfit) > 0 {
		a.say("Not on the branch, because they do not have the encoding that attributes of git say (working-tree-encoding): %s. `agbox apply %s` without --branch brings them.", outsides(done.Unfit), sandbox)
	}
	if len(done.Encodings) > 0 {
		a.say("Git does not know the encoding %s.", printable(some(done.Encodings)))
	}
	if len(done.Submodules) > 0 {
		names := collect(done.Submodules, edits.PlaceIn(done.Folder, o.Here).Name)
		bring := "PATH..."
		if len(names) <= namedLosses {
			bring = shellWords(names)
		}
		a.say("Not on the branch, because a submodule has them: %s. `agbox apply %s %s` brings them to the folder.", printable(some(names)), sandbox, printable(bring))
	}
	bare := slices.DeleteFunc(slices.Clone(done.Gitlinks), func(dir string) bool {
		return slices.ContainsFunc(done.Submodules, func(name string) bool { return strings.HasPrefix(name, dir+"/") })
	})
	if len(bare) > 0 {
		a.say("Of submodules the branch has only the commit, and no files: %s.", printable(some(collect(bare, edits.PlaceIn(done.Folder, o.Here).Name))))
	}
	// Whether there is a branch afterwards, or would be without --check.
	branch := done.Tip != "" || done.Commit != "" || o.Check && (len(done.Commits) > 0 || slices.ContainsFunc(done.Outcomes, func(one client.WorkOutcome) bool { return one.Kind != edits.Already }))
	switch {
	case len(done.AtHome) > 0 && branch:
		a.say("Not on the branch, because the folder has it already: %s. Commit it there, then merge that commit into the branch.", outsides(done.AtHome))
	case len(done.AtHome) > 0:
		a.say("Not on a branch, because the folder has it already: %s.", outsides(done.AtHome))
	}
	if done.NoBranch {
		a.say("No branch was made: nothing of the work can be on it.")
	}
}

// adviceForBranch says how the work gets past conflicts with a branch.
func (o *applyOptions) adviceForBranch(sandbox string, done client.AppliedWork, conflicts int) string {
	var files, skipped []string
	for _, one := range done.Outcomes {
		name := printable(edits.PlaceIn(done.Folder, o.Here).Name(one.Path))
		switch {
		case one.Skipped:
			skipped = append(skipped, name)
		case one.InFolder:
			files = append(files, name)
		}
	}
	advice := ""
	if len(files) > 0 {
		advice = fmt.Sprintf("The folder has changes that are not committed (%s): commit them there, then `agbox apply %s --branch NAME` makes a new branch on top of them.", some(files), sandbox)
	}
	if len(skipped) > 0 {
		advice = strings.TrimSpace(advice + fmt.Sprintf(" Git does not look at %s in the folder (skip-worktree, assume-unchanged or a sparse checkout), and commits nothing of it.", some(skipped)))
	}
	if len(files) == conflicts {
		return advice
	}
	return strings.TrimSpace(advice + fmt.Sprintf(" `agbox apply %s` without --branch brings the work to the folder. Another branch helps only if it has of these files what the folder had when it was copied.", sandbox))
}

// outsides names the files outside of git by the first parts of their paths.
func outsides(all []string) string {
	files := make(map[string]int)
	for _, name := range all {
		if first, _, below := strings.Cut(name, "/"); below {
			name = first + "/"
		}
		files[name]++
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := printable(name)
		if strings.HasSuffix(name, "/") {
			text += " (" + plural(files[name], "file", "files") + ")"
		}
		out = append(out, text)
	}
	if more := len(out) - shownExecutables; more > 0 {
		out = append(out[:shownExecutables], plural(more, "other", "others"))
	}
	return strings.Join(out, ", ")
}

// count counts what is set.
func count(all ...bool) (n int) {
	for _, one := range all {
		if one {
			n++
		}
	}
	return n
}

// command is what a person types to do the same again.
func (o *applyOptions) command() string {
	if o.pull {
		return "agbox pull"
	}
	return "agbox apply"
}

// tell prints what became of each file, as git names it.
func (o *applyOptions) tell(a *app, done client.AppliedWork) error {
	var look []string
	place := edits.PlaceIn(done.Folder, o.Here)
	for _, one := range done.Outcomes {
		name, letter := printable(place.Name(one.Path)), map[edits.Kind]string{
			edits.Written: "M", edits.Removed: "D", edits.Merged: "M", edits.Marked: "U", edits.Refused: "U",
		}[one.Kind]
		switch {
		case one.Kind == edits.Already:
			continue
		case letter == "M" && one.Before == nil:
			letter = "A"
		case letter == "M" && one.From != "":
			letter, name = "R", printable(place.Name(one.From))+" => "+name
		}
		switch one.Kind {
		case edits.Merged:
			name += "  (merged)"
		case edits.Marked:
			name += "  (conflict: both have changed the same lines"
			if !o.Check {
				name += "; see the markers"
			}
			name += ")"
		case edits.Refused:
			name += "  (conflict: " + printable(one.Why) + ")"
		}
		if _, err := fmt.Fprintf(a.stdout, "%s %s\n", letter, name); err != nil {
			return err
		}
		if one.After == nil || one.Kind == edits.Refused {
			continue
		}
		if to := leadsOut(one.Path, one.Target); to != "" {
			link := place.Name(one.Path)
			if place == "" {
				link = filepath.Join(done.Folder, link)
			}
			look = append(look, printable(link)+" -> "+printable(to))
		}
	}
	if n := len(done.LFS); n > 0 {
		a.say("Of these files, the commits have versions whose content git-lfs keeps in the sandbox only: it goes with the sandbox, unless 'git lfs push' there sends it elsewhere.")
		for _, name := range done.LFS[:min(n, maxLFS)] {
			a.sayEach("  " + printable(name))
		}
		if n > maxLFS {
			a.say("  and %d more", n-maxLFS)
		}
	}
	for _, one := range done.Links {
		if to := leadsOut(one.Path, one.Target); to != "" {
			look = append(look, printable(one.Path)+" -> "+printable(to))
		}
	}
	if len(look) > 0 && !o.Check {
		a.say("These links lead out of the folder:")
		a.sayEach("  " + strings.Join(look, "\n  "))
	}
	return nil
}

// maxLFS is how many files are named of which git-lfs has contents in the sandbox only.
const maxLFS = 10

// leadsOut returns the target of a link at a path if it leads out of the workspace.
func leadsOut(path, to string) string {
	if to == "" {
		return ""
	}
	if filepath.IsAbs(to) || !filepath.IsLocal(filepath.Join(filepath.Dir(path), to)) {
		return to
	}
	return ""
}

// shownExecutables is how many files of one kind are shown before a question.
const shownExecutables = 10

// executables decides about what a sandbox brings that this machine would execute.
type executables struct {
	yes bool
}

func (e *executables) addFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&e.yes, "yes-executable", false, "also bring, unasked, what this machine executes or agents read")
}

// ask is a client.Agree: it shows the files, and asks on a terminal unless the flag answers.
func (e *executables) ask(ctx context.Context, a *app, folder string, found []client.Executable) (bool, error) {
	if e.yes {
		a.nameExecutables(found)
		return true, nil
	}
	a.showExecutables(folder, found)
	if a.terminal() == nil {
		return false, nil
	}
	return a.confirm(ctx, "Bring them too?")
}

// showExecutables shows files with who executes them and when: some of each kind, so that a
// flood of one kind hides no other.
func (a *app) showExecutables(folder string, found []client.Executable) {
	a.say("Look at these first. Programs of this machine execute them in %s because they are there, agents read them as instructions, or agbox reads them next:", printable(folder))
	of := make(map[string]int)
	for _, one := range found {
		of[one.Who]++
		if of[one.Who] > shownExecutables {
			continue
		}
		name := one.Path
		if one.Repository {
			name += "/"
		}
		a.sayEach("  " + one.Letter + " " + printable(name) + "  (" + one.Who + ", " + one.When + ")")
	}
	for _, who := range slices.Sorted(maps.Keys(of)) {
		if more := of[who] - shownExecutables; more > 0 {
			a.sayEach("  and " + plural(more, "other", "others") + " of " + who)
		}
	}
}

// called are files as they are called from a place in their folder.
func called(from edits.Place, found []client.Executable) []client.Executable {
	found = slices.Clone(found)
	for i := range found {
		found[i].Path = from.Name(found[i].Path)
	}
	return found
}

// nameExecutables names in one line the files that --yes-executable brings.
func (a *app) nameExecutables(found []client.Executable) {
	var names []string
	for _, one := range found[:min(len(found), shownExecutables)] {
		name := printable(one.Path)
		if one.Repository {
			name += "/"
		}
		names = append(names, one.Letter+" "+name+" ("+one.Who+")")
	}
	if more := len(found) - len(names); more > 0 {
		names = append(names, plural(more, "other", "others"))
	}
	a.say("With --yes-executable come: %s.", strings.Join(names, ", "))
}

// wereExecutables begins a sentence about files.
func wereExecutables(found []client.Executable) string {
	return plural(len(found), "file or repository that this machine executes was", "files or repositories that this machine executes were")
}
