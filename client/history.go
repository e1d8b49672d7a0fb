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
		defer cancel() // ends the comparison
		stream, err := api.CompareWorkspace(ctx, &agboxv1.CompareWorkspaceRequest{SandboxId: sandboxID, NamesOnly: true})
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

// NewCommit returns the newest commit that a sandbox, which may be stopped, has made in its
// workspace, if ApplyWork has not brought its commits, or all work up to it, yet; else "".
func (c *Client) NewCommit(ctx context.Context, sandbox string) (string, error) {
	w, err := c.origin(ctx, sandbox)
	if err != nil {
		return "", err
	}
	tip, err := c.tip(ctx, sandbox, w)
	if err != nil || tip == w.brought {
		return "", err
	}
	return tip, nil
}

// tip returns the commit that HEAD of the repository in a workspace names; "" if that is no other
// than was copied in. It must come before the comparison: what changes in between is then work
// that is not committed.
func (c *Client) tip(ctx context.Context, sandboxID string, w *Work) (string, error) {
	if w.head == "" {
		return "", nil
	}
	git := w.Target + "/.git/"
	read := func(name string, most int) (string, error) {
		text, err := c.readOne(ctx, sandboxID, git+name, most)
		for _, none := range []agboxv1.ErrorReason{agboxv1.ErrorReason_FILE_NOT_FOUND, agboxv1.ErrorReason_NOT_A_DIRECTORY} {
			if own := new(Error); errors.As(err, &own) && own.Reason == none.String() {
				return "", nil
			}
		}
		return strings.TrimSpace(text), err
	}
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
