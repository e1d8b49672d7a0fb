package client

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/edits"
)

const (
	// maxHead is the maximum size of a file with one reference of git, and maxPackedRefs that of
	// the file with many, in bytes.
	maxHead       = 4 << 10
	maxPackedRefs = 16 << 20
)

var (
	isCommit = regexp.MustCompile("^([0-9a-f]{40}|[0-9a-f]{64})$").MatchString
	isBranch = regexp.MustCompile(`^refs/heads/[^\x00-\x20]+$`).MatchString
)

// origin returns from where a workspace was copied, without what has changed.
func (c *Client) origin(ctx context.Context, sandboxID string) (w *Work, err error) {
	err = c.repeated(ctx, func(api agboxv1.FileServiceClient) (again bool, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // a daemon without base_only compares
		stream, err := api.CompareWorkspace(ctx, &agboxv1.CompareWorkspaceRequest{SandboxId: sandboxID, BaseOnly: true, NamesOnly: true})
		if err != nil {
			return true, err
		}
		m, err := stream.Recv()
		if err != nil {
			return true, err
		}
		w = new(Work)
		w.from(m.GetBase())
		return true, nil
	})
	return w, err
}

// BranchCommit is the newest commit of a branch of a sandbox.
type BranchCommit struct {
	// Branch is the short name. It comes from the sandbox, and is empty for what HEAD names.
	Branch, Commit string
}

// NewCommits returns the newest commit of HEAD and of each other branch of the repository in a
// workspace, HEAD first. w is what Work has returned of it. It leaves out what the folder's
// repository has, what was copied in, what another one has named, and up to which commit
// ApplyWork has brought all commits or all work. An error comes with those that were found.
func (c *Client) NewCommits(ctx context.Context, sandbox string, w *Work) ([]BranchCommit, error) {
	if w.head == "" {
		return nil, nil
	}
	tip, failed := c.tip(ctx, sandbox, w)
	branches, err := c.branches(ctx, sandbox, w)
	seen := map[string]bool{"": true, w.head: true, w.brought: true}
	var all []BranchCommit
	for _, one := range append([]BranchCommit{{Commit: tip}}, branches...) {
		if !seen[one.Commit] {
			seen[one.Commit] = true
			all = append(all, one)
		}
	}
	if err = errors.Join(failed, err); len(all) == 0 {
		return nil, err
	}
	had, failed := within(ctx, func() (map[string]bool, error) {
		return edits.HasCommits(ctx, w.Source, slices.Sorted(maps.Keys(seen)))
	})
	if failed != nil && ctx.Err() != nil {
		return all, ctx.Err()
	}
	// A folder that has no repository any more has none of them.
	return slices.DeleteFunc(all, func(one BranchCommit) bool { return had[one.Commit] }), err
}

// branches returns the branches of the repository in a workspace, sorted.
func (c *Client) branches(ctx context.Context, sandboxID string, w *Work) ([]BranchCommit, error) {
	all := make(map[string]string)
	packed, err := c.readRef(ctx, sandboxID, w, "packed-refs", maxPackedRefs)
	if err != nil {
		return nil, err
	}
	add := func(name, commit string) {
		if isBranch(name) && isCommit(commit) {
			all[strings.TrimPrefix(name, "refs/heads/")] = commit
		}
	}
	for line := range strings.Lines(packed) {
		at, of, _ := strings.Cut(strings.TrimSpace(line), " ")
		add(of, at)
	}
	archive := &atMost{left: maxPackedRefs}
	err = c.ReadArchive(ctx, sandboxID, w.Target+"/.git/refs/heads", "heads", archive, CopyOptions{})
	if err != nil && !isNoFile(err) {
		return nil, err
	}
	for files := tar.NewReader(&archive.Buffer); ; {
		h, err := files.Next()
		if err != nil {
			break // the end, or an archive that ends early: what is in it counts
		}
		text, err := io.ReadAll(io.LimitReader(files, maxHead))
		if err == nil && h.Typeflag == tar.TypeReg {
			add("refs/"+h.Name, strings.TrimSpace(string(text)))
		}
	}
	var out []BranchCommit
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, BranchCommit{name, all[name]})
	}
	return out, nil
}

// readRef reads a file of references of the repository in a workspace; "" if there is none.
func (c *Client) readRef(ctx context.Context, sandboxID string, w *Work, name string, most int) (string, error) {
	text, err := c.readOne(ctx, sandboxID, w.Target+"/.git/"+name, most)
	if isNoFile(err) {
		return "", nil
	}
	return strings.TrimSpace(text), err
}

// isNoFile reports whether an error says that there is no such file.
func isNoFile(err error) bool {
	own := new(Error)
	return errors.As(err, &own) && (own.Reason == agboxv1.ErrorReason_FILE_NOT_FOUND.String() || own.Reason == agboxv1.ErrorReason_NOT_A_DIRECTORY.String())
}

// tip returns the commit that HEAD of the repository in a workspace names; "" if that is no other
// than was copied in. It must come before the comparison: what changes in between is then work
// that is not committed.
func (c *Client) tip(ctx context.Context, sandboxID string, w *Work) (string, error) {
	if w.head == "" {
		return "", nil
	}
	read := func(name string, most int) (string, error) { return c.readRef(ctx, sandboxID, w, name, most) }
	tip, err := read("HEAD", maxHead)
	if name, is := strings.CutPrefix(tip, "ref: "); is && err == nil {
		if !isBranch(name) || slices.Contains(strings.Split(name, "/"), "..") {
			return "", nil
		}
		if tip, err = read(name, maxHead); tip == "" && err == nil {
			var packed string
			packed, err = read("packed-refs", maxPackedRefs)
			for line := range strings.Lines(packed) {
				if at, of, _ := strings.Cut(strings.TrimSpace(line), " "); of == name {
					tip = at
				}
			}
		}
	}
	if !isCommit(tip) || tip == w.head || err != nil {
		return "", err
	}
	return tip, nil
}

// history returns the repository in a workspace.
func (c *Client) history(ctx context.Context, sandboxID string, w *Work) *edits.History {
	return &edits.History{Copied: w.head, Tip: w.tip, Base: w.shared.Files, Objects: func(to io.Writer) error {
		return c.ReadArchive(ctx, sandboxID, w.Target+"/.git/objects", "objects", to, CopyOptions{})
	}}
}

// copied completes a history by what was copied in, and by what w does not show of the workspace.
func (c *Client) copied(ctx context.Context, sandboxID string, w *Work, h *edits.History) error {
	all, err := c.compare(ctx, sandboxID, WorkOptions{All: true, NamesOnly: true, FromStart: true}, true)
	if err != nil {
		return err
	}
	defer all.Close()
	h.Copy, h.Apart = all.shared.Files, make(map[string]bool)
	h.Home = func() (map[string]*edits.File, error) {
		home, err := c.compare(ctx, sandboxID, WorkOptions{NamesOnly: true, folder: true}, true)
		if err != nil {
			return nil, err
		}
		defer home.Close()
		return home.shared.Files, nil
	}
	for name := range h.Copy {
		h.Apart[name] = true
	}
	for _, c := range slices.Concat(all.Changes, all.Large) {
		h.Apart[c.Path] = c.After != nil
	}
	maps.DeleteFunc(h.Apart, func(name string, _ bool) bool { return w.shared.Files[name] != nil })
	for _, c := range w.Changes {
		delete(h.Apart, c.Path)
	}
	return nil
}

// readOne reads a regular file of a sandbox up to a size.
func (c *Client) readOne(ctx context.Context, sandboxID, path string, most int) (string, error) {
	archive := &atMost{left: most + 8<<10}
	if err := c.ReadArchive(ctx, sandboxID, path, "f", archive, CopyOptions{}); err != nil {
		return "", err
	}
	files := tar.NewReader(&archive.Buffer)
	h, err := files.Next()
	if err != nil || h.Typeflag != tar.TypeReg {
		return "", nil //nolint:nilerr // an empty archive
	}
	text, err := io.ReadAll(io.LimitReader(files, int64(most)))
	return string(text), err
}

// atMost is a buffer with a bound.
type atMost struct {
	bytes.Buffer
	left int
}

func (b *atMost) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, &Error{Code: codes.FailedPrecondition, Message: "A file of references of git in the sandbox is too large."}
	}
	return b.Buffer.Write(p)
}

// agreeToCommits asks about what commits bring and this machine would execute, also if a later
// commit takes it out again. come are the changes that nobody must ask about any more.
func (w *Work) agreeToCommits(ctx context.Context, o ApplyOptions, come []WorkChange, done *AppliedWork) func([]WorkChange) error {
	return func(all []WorkChange) error {
		found := slices.DeleteFunc(executables(w.Source, all), func(e Executable) bool {
			return !o.Check && slices.ContainsFunc(come, func(c WorkChange) bool { return c.Path == e.Path })
		})
		found = outermost(found)
		if o.Check {
			done.Executable = outermost(append(done.Executable, found...))
			return nil
		}
		if len(found) == 0 || o.Agree == nil {
			return nil
		}
		yes, err := o.Agree(ctx, w.Source, found)
		if yes || err != nil {
			return err
		}
		return &Error{Code: codes.FailedPrecondition, Reason: agboxv1.ErrorReason_INVALID_REQUEST.String(), Message: fmt.Sprintf(
			"The commits of the sandbox have %q, which this machine would execute, and nobody agreed: --yes-executable brings them, and --squash makes one commit without it.", found[0].Path)}
	}
}
