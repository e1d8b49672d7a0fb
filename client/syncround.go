package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/edits"
)

// maxRounds bounds the rounds until both sides are in step: each may find what happened
// during the one before.
const maxRounds = 10

// settle does rounds until nothing is left to do.
func (s *syncing) settle(ctx context.Context) error {
	var err error
	for n := range maxRounds {
		var again bool
		s.last = n == maxRounds-1
		again, err = s.round(ctx)
		if err != nil && !errors.Is(err, errRepeat) || err == nil && !again {
			return err
		}
	}
	return err
}

// errRepeat is the error if the daemon went away while a file was brought: the next round
// waits for it.
var errRepeat = errors.New("the daemon does not stay")

// round compares both sides once, and brings what can be brought. again means that it has
// changed something.
func (s *syncing) round(ctx context.Context) (again bool, err error) {
	tip, _ := s.c.tip(ctx, s.id, s.from) // files come without commits
	w, err := s.c.compare(ctx, s.id, WorkOptions{folder: true, merged: true}, true)
	if err != nil {
		return false, err
	}
	defer w.Close()
	if s.target == "" {
		if s.release, err = edits.Hold(w.Source, s.data, "sync"); err != nil {
			return false, err
		}
		if s.pushes, err = loadPushes(s.id); err != nil {
			return false, err
		}
		s.target, s.scanner.Folder = w.Target, w.Source
		if s.o.Began != nil {
			s.o.Began(w.Source, w.Target)
		}
	}
	if again, err := s.finish(ctx, w); again || err != nil {
		return again, err
	}
	if err := w.notHeld(); err != nil {
		return false, err
	}
	settled, err := edits.Settle(edits.ApplyOptions{
		Folder: w.Source, Data: s.data, Sandbox: s.id, Advance: s.advance(ctx),
		Hidden: func(path string) (bool, error) { return s.c.hasChanged(ctx, s.id, path) },
	}, w.Changes)
	if settled.Again || err != nil {
		return true, err
	}
	scan, err := s.scanner.Scan(ctx, w.shared)
	if err == nil && s.tracked {
		err = scan.LeaveUntracked(ctx, w.Source, w.shared.Files)
	}
	if err != nil {
		return false, err
	}
	if moved, err := s.headMoved(ctx, w); moved || err != nil {
		return true, err
	}
	if err := s.noteMerged(ctx, w, scan); err != nil {
		return false, err
	}
	s.folders = scan.Folders
	r := &syncRound{syncing: s, Sides: edits.Part(w.shared.Files, w.Changes, scan.Changed, settled.Open), dir: w.dir.Path, clashes: make(map[string]bool)}
	if err := r.hold(ctx); err != nil {
		return false, err
	}
	for _, path := range slices.Sorted(maps.Keys(r.Clashes)) {
		r.clash(path, r.Clashes[path])
	}
	for _, one := range w.Large {
		why := "it is too large in the sandbox: copy it with `agbox cp`, then `agbox apply`"
		if RefusedName(one.Path) {
			why = "some file systems take its name for .git, so it is left out"
		}
		r.Clashes[one.Path] = why
		r.clash(one.Path, why)
	}
	r.ToSandbox = slices.DeleteFunc(r.ToSandbox, func(c edits.Change) bool { return r.Clashes[c.Path] != "" })
	for _, path := range scan.Large {
		if r.clashes[path] {
			continue
		}
		r.clash(path, "it is larger than 256 MiB in the folder: copy it with `agbox cp`")
	}
	if err := r.bringToFolder(ctx); err != nil {
		return false, err
	}
	came := false
	if w.folders, w.tip = s.from.folders, tip; len(r.clashes) == 0 && tip != "" && (tip != w.brought || w.byOthers()) {
		if came, err = s.home.came(ctx, s.id, w, &base{folder: w.Source, files: w.shared.Files}, nil); err != nil {
			return false, err
		}
	}
	if err := r.bringToSandbox(ctx); err != nil {
		return false, err
	}
	maps.DeleteFunc(s.conflicts, func(path, _ string) bool { return !r.clashes[path] })
	if came && len(r.clashes) == 0 {
		err = s.c.advanceTo(ctx, &agboxv1.AdvanceBaseOpen{SandboxId: s.id, Commit: tip, BranchCommit: w.mergedBy()}, nil)
	}
	return r.brought, err
}

// longestGit is how long a Sync waits for a git that writes files of the folder, all together: one that was
// killed has left its lock, and one that asks for a message holds it. pollGit is the time between two looks.
const (
	longestGit = 10 * time.Second
	pollGit    = 50 * time.Millisecond
)

// headMoved reports whether HEAD of the folder may be another one than when w took what it has for
// what the folder has: then its files may not be those of w. It waits until git has done its work.
func (s *syncing) headMoved(ctx context.Context, w *Work) (bool, error) {
	if len(w.current) == 0 || s.last {
		return false, nil
	}
	now, err := within(ctx, func() (edits.MergedCommits, error) { return edits.Head(ctx, w.Source) })
	if err != nil { // its repository is gone
		now = edits.MergedCommits{}
	}
	moved := w.merged.State != now.State
	for locked := now.Locked; locked; {
		if s.waited >= longestGit {
			return moved, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(pollGit):
			s.waited += pollGit
		}
		_, err := within(ctx, func() (fs.FileInfo, error) { return os.Lstat(now.Lock) })
		locked, moved = err == nil, true
	}
	s.waited = 0
	return moved || w.merged.Locked, ctx.Err()
}

// noteMerged makes what both sides have by a merged branch the base, as all else that both have: a
// checkout of another branch goes to the sandbox as a whole then.
func (s *syncing) noteMerged(ctx context.Context, w *Work, scan edits.Scan) error {
	changed := make(map[string]bool)
	for _, c := range slices.Concat(w.Changes, w.Large) {
		changed[c.Path] = true
	}
	for _, path := range scan.Large {
		changed[path] = true
	}
	var both []edits.AdvancedFile
	for _, path := range slices.Sorted(maps.Keys(w.branched)) {
		file := w.shared.Files[path]
		if _, ours := scan.Changed[path]; ours || changed[path] || file != nil && file.TooLarge {
			continue
		}
		both = append(both, edits.AdvancedFile{Path: path, File: file, Content: func() ([]byte, error) {
			_, content, err := edits.ReadFile(w.Source, path)
			return content, err
		}})
	}
	if len(both) == 0 {
		return nil
	}
	return s.c.advanceBase(ctx, s.id, both)
}

// finish ends what was written to the sandbox when a client or the daemon was killed. again
// means that there was something.
func (s *syncing) finish(ctx context.Context, w *Work) (again bool, err error) {
	for _, left := range w.left {
		if left.Untouched {
			err = s.c.RemoveFile(ctx, s.id, s.at(left.At), false, FileOptions{})
		} else {
			err = s.c.MoveFile(ctx, s.id, s.at(left.At), s.at(left.Path), true, FileOptions{})
		}
		if err = repeatable(err); ctx.Err() != nil || errors.Is(err, errRepeat) {
			return false, err
		}
		if err != nil { // its place is taken: from now on it is a file like any other
			err = s.pushes.Forget([]edits.AdvancedFile{{Path: left.Path}})
		}
		if err != nil {
			return false, err
		}
	}
	if len(w.left) > 0 {
		return true, nil
	}
	if len(w.landed) == 0 {
		return false, s.pushes.Keep(w.Changes)
	}
	return true, s.landed(ctx, edits.AdvanceAll(w.landed))
}

// landed makes what was written to the sandbox the base.
func (s *syncing) landed(ctx context.Context, done []edits.AdvancedFile) error {
	if err := s.c.advanceTo(ctx, &agboxv1.AdvanceBaseOpen{SandboxId: s.id}, done); err != nil {
		return err
	}
	return s.pushes.Forget(done)
}

// repeatable has errRepeat in an error of a daemon that went away.
func repeatable(err error) error {
	if own, ok := errors.AsType[*Error](err); ok && (own.lost || own.Code == codes.Unavailable) {
		return fmt.Errorf("%w: %w", errRepeat, err)
	}
	return err
}

// syncRound is one round.
type syncRound struct {
	*syncing
	edits.Sides
	// dir is for temporary files.
	dir     string
	clashes map[string]bool
	brought bool
}

// hold keeps back what this machine would execute, unless Agree lets it come.
func (r *syncRound) hold(ctx context.Context) error {
	come, left, err := r.asked.Decide(ctx, r.scanner.Folder, r.ToFolder)
	for _, one := range left {
		r.clash(one.Path, "not brought without a yes: "+one.Who+", "+one.When)
	}
	r.ToFolder = come
	return err
}

// clash tells of a conflict, once.
func (r *syncRound) clash(path, why string) {
	r.clashes[path] = true
	if r.conflicts[path] == why {
		return
	}
	r.conflicts[path] = why
	r.tell(SyncedFile{Path: path, Conflict: why})
}

// advance makes files the base of a sandbox: of another one if an earlier call was killed.
func (s *syncing) advance(ctx context.Context) func(string, []edits.AdvancedFile) error {
	return func(of string, files []edits.AdvancedFile) error { return s.c.advanceBase(ctx, of, files) }
}

func (s *syncing) tell(one SyncedFile) {
	if s.o.Told != nil {
		s.o.Told(one)
	}
}

// bringToFolder brings what the sandbox has changed.
func (r *syncRound) bringToFolder(ctx context.Context) error {
	if len(r.ToFolder) == 0 {
		return nil
	}
	out, err := edits.Apply(ctx, r.ToFolder, edits.ApplyOptions{
		Folder: r.scanner.Folder, Data: r.data, Sandbox: r.id, Label: r.label, Exact: true,
		Advance: r.advance(ctx),
	})
	if err != nil {
		return err
	}
	r.brought = r.brought || out.Changed || out.Finished || out.Again
	for _, one := range out.Outcomes {
		switch {
		case one.Conflict() && one.Why == edits.WhyChanged && one.Before == nil: // the scan would have shown it
			r.clash(one.Path, "the folder has its own, which was left out of the copy: `agbox apply` brings both together")
		case one.Conflict():
			r.clash(one.Path, one.Why)
		case one.Kind != edits.Already:
			r.tell(SyncedFile{Path: one.Path, Before: one.Before, After: one.After, Target: one.Target})
		}
	}
	return nil
}

// bringToSandbox brings what the folder has changed: first what it has removed, because that
// may make room.
func (r *syncRound) bringToSandbox(ctx context.Context) error {
	before := r.moved
	r.moved = make(map[string]bool)
	slices.SortStableFunc(r.ToSandbox, func(a, b edits.Change) int { return boolInt(a.After != nil) - boolInt(b.After != nil) })
	if len(r.ToSandbox) == 0 {
		return nil
	}
	if err := r.pushes.Note(r.ToSandbox, tempName); err != nil {
		return err
	}
	var done []edits.AdvancedFile
	var failed error
	for _, change := range r.ToSandbox {
		file, err := r.put(ctx, change)
		var own *Error
		err = repeatable(err)
		if ctx.Err() == nil && errors.As(err, &own) && !errors.Is(err, errRepeat) {
			if moves(own) && !before[change.Path] && !r.last {
				r.moved[change.Path], r.brought = true, true // the next round sees who has changed it
				continue
			}
			r.clash(change.Path, sandboxRefuses(own))
			continue
		}
		if failed = err; err != nil {
			break
		}
		if file != nil {
			done = append(done, *file)
			r.tell(SyncedFile{Path: change.Path, ToSandbox: true, Before: change.Before, After: file.File})
		}
	}
	if len(done) > 0 {
		r.brought = true
		failed = errors.Join(failed, r.landed(context.WithoutCancel(ctx), done))
	}
	return failed
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// moves reports whether the file is not what the comparison found. It may have been this client: if
// a daemon was killed before it could answer, a repeated write finds what the first one wrote.
func moves(e *Error) bool {
	switch e.Reason {
	case "FILE_CHANGED", "FILE_EXISTS", "FILE_NOT_FOUND", "FILE_NOT_REGULAR", "IS_A_DIRECTORY", "NOT_A_DIRECTORY":
		return true
	}
	return false
}

// sandboxRefuses says why the sandbox did not take a file.
func sandboxRefuses(e *Error) string {
	if moves(e) {
		return "the sandbox has changed it at this moment, or something else is in its place, and both sides keep theirs"
	}
	return fmt.Sprintf("the sandbox does not take it: %s", e.Message)
}

// put brings one file, and returns what the base is to have. nil means that the folder has
// changed it again.
func (r *syncRound) put(ctx context.Context, change edits.Change) (*edits.AdvancedFile, error) {
	done := &edits.AdvancedFile{Path: change.Path}
	if change.After == nil {
		return done, r.remove(ctx, change)
	}
	file, content, err := edits.ReadFile(r.scanner.Folder, change.Path)
	if err != nil || !edits.Same(file, change.After) {
		return nil, nil //nolint:nilerr // the next round sees what it is now
	}
	kept := edits.ContentFile(r.dir, file)
	if err := os.WriteFile(kept, content, 0o600); err != nil {
		return nil, err
	}
	done.File, done.Content = file, func() ([]byte, error) { return os.ReadFile(kept) }
	return done, r.write(ctx, change, content)
}
