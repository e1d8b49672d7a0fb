package server

import (
	"context"
	"errors"
	"io"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"github.com/agbox/agbox/daemon/review"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// CompareWorkspace streams what a sandbox has changed in its workspace.
func (f fileCalls) CompareWorkspace(req *agboxv1.CompareWorkspaceRequest, stream grpc.ServerStreamingServer[agboxv1.CompareWorkspaceResponse]) error {
	ctx, cancel := f.life.context(stream.Context())
	defer cancel()
	sb, err := f.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return err
	}
	if sb.Over() {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_WORKSPACE_HAS_NO_BASE,
			"Sandbox %s is deleted, and its workspace with it: there is nothing to compare.", sb.Called())
	}
	r := review.New(f.files, f.paths)
	if req.GetBaseOnly() {
		base, err := r.Summary(sb.ID, f.copiedFrom(sb))
		if err != nil {
			return err
		}
		return stream.Send(about(base))
	}
	o := review.Options{All: req.GetAll(), NamesOnly: req.GetNamesOnly(), Stat: req.GetStat(), Once: req.GetContentsOnce(), Removal: req.GetRemoval(), Home: req.GetHome(), Index: req.GetIndex(), Branch: req.GetHome() || req.GetWithBase()}
	base, err := r.Open(sb.ID, f.copiedFrom(sb), req.GetAgainst(), review.Commits{Lost: req.GetLostCommits(), Branch: o.Branch, Elsewhere: req.GetElsewhereCommits(), Merged: req.GetMergedCommits()})
	if err != nil {
		return err
	}
	defer base.Close()
	if err := stream.Send(about(base.WorkspaceBase)); err != nil {
		return err
	}
	switch {
	case req.GetWithBase():
		err = review.Files(base, req.GetBaseInParts(), stream.Send)
	case req.GetIndex():
		err = review.Lost(base, stream.Send)
	}
	if err != nil {
		return err
	}
	if !atRest(sb) {
		return f.orAtRest(sb.ID, orStopped(ctx, r.Compare(ctx, sb.ID, base, o, stream.Send)))
	}
	ctx, enough := context.WithTimeout(ctx, archiveTimeout)
	defer enough()
	return orStopped(ctx, r.CompareStopped(ctx, sb.ID, base, o, func(ctx context.Context, path string) (io.ReadCloser, error) {
		return f.loop.Archive(ctx, sb, path)
	}, stream.Send))
}

// about is the first message of a comparison.
func about(base *storev1.WorkspaceBase) *agboxv1.CompareWorkspaceResponse {
	return &agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Base{Base: &agboxv1.WorkspaceBase{
		Source: base.GetSource(), Target: base.GetTarget(), ExcludePatterns: base.GetExcludePatterns(), Foreign: base.GetForeign(),
		Head: base.GetHead(), Brought: base.GetBrought(), BranchCommits: review.BranchCommits(base), BroughtBy: base.GetBroughtBy(), CurrentCommits: review.CurrentCommits(base),
	}}}
}

// AdvanceBase replaces files of the base of a workspace.
func (f fileCalls) AdvanceBase(stream grpc.ClientStreamingServer[agboxv1.AdvanceBaseRequest, agboxv1.AdvanceBaseResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return invalid("open: the first message names the sandbox.")
	}
	ctx, cancel := f.life.context(stream.Context())
	defer cancel()
	sb, err := f.ledger.FindSandbox(ctx, open.GetSandboxId())
	if err != nil {
		return err
	}
	a, err := review.New(f.files, f.paths).Begin(ctx, sb.ID, f.copiedFrom(sb), open.GetBranch())
	if err != nil {
		return err
	}
	a.By(open.GetBranchCommit(), open.GetBranchTip(), open.GetLostCommits(), open.GetElsewhereCommits()...)
	if open.GetFromSandbox() {
		a.FromSandbox()
	}
	if commit := open.GetCommit(); commit != "" {
		a.Brought(commit)
	}
	a.Moved(open.GetMovedCommits())
	if open.GetBranch() {
		a.Untrack(open.GetUntracked())
	}
	if err := advance(a, stream.Recv); err != nil {
		a.Discard()
		return err
	}
	if err := a.Commit(); err != nil {
		return err
	}
	for _, ended := range f.ledger.UndoneIn(sb.ID) { // its sandbox was kept for work that has come home now
		f.loop.EnqueueAgent(ended.ID)
	}
	return stream.SendAndClose(&agboxv1.AdvanceBaseResponse{})
}

// advance receives all files of a new base.
func advance(a *review.Advance, recv func() (*agboxv1.AdvanceBaseRequest, error)) error {
	for {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch item := m.GetItem().(type) {
		case *agboxv1.AdvanceBaseRequest_Open:
			return invalid("open: only the first message has it.")
		case *agboxv1.AdvanceBaseRequest_Data:
			a.Content(item.Data)
		case *agboxv1.AdvanceBaseRequest_File:
			path, file := string(item.File.GetPath()), item.File.GetFile()
			if !review.Valid(path) {
				return invalid("file: the path is not one of a workspace.")
			}
			a.Had(item.File.GetHad())
			switch {
			case file == nil:
				a.Remove(path)
			case file.GetTooLarge():
				if err := review.Note(a, path, file); err != nil {
					return err
				}
			default:
				a.Replace(path, file.GetLink(), file.GetExecutable())
			}
		}
	}
}
