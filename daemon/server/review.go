package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/review"
	"github.com/agbox/agbox/internal/fault"
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
		return f.orAtRest(ctx, sb.ID, orStopped(ctx, r.Compare(ctx, sb.ID, base, o, stream.Send)))
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

// orAtRest returns err, or one after which clients try again if it means that a sandbox has ended
// under its comparison: the next one reads the archive of the engine.
func (f fileCalls) orAtRest(ctx context.Context, sandboxID string, err error) error {
	if fault.ReasonOf(err) != agboxv1.ErrorReason_SANDBOX_NOT_READY {
		return err
	}
	if sb, living := f.ledger.Sandbox(sandboxID); !living || !atRest(sb) {
		return err
	}
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE, "The sandbox has ended while its workspace was compared; try again.").Because(err)
}

// atRest reports whether a sandbox does not run.
func atRest(sb ledger.Sandbox) bool {
	return sb.State == agboxv1.SandboxState_SANDBOX_STATE_STOPPED || sb.State == agboxv1.SandboxState_SANDBOX_STATE_FAILED
}

// copyOutStopped streams a part of a repository in the workspace of a sandbox that does not run.
// done is false for all else.
func (f fileCalls) copyOutStopped(req *agboxv1.CopyOutRequest, stream grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) (done bool, err error) {
	ctx, cancel := f.life.context(stream.Context())
	defer cancel()
	sb, err := f.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil || !atRest(sb) {
		return false, err
	}
	r := review.New(f.files, f.paths)
	base, err := r.Open(sb.ID, nil, agboxv1.WorkBase_WORK_BASE_FOLDER, review.Commits{})
	if err != nil {
		return false, nil //nolint:nilerr // nothing was copied in
	}
	defer base.Close()
	below, is := strings.CutPrefix(req.GetPath()+"/", base.GetTarget()+"/")
	if !is || !strings.Contains("/"+below, "/.git/") {
		return false, nil
	}
	ctx, enough := context.WithTimeout(ctx, archiveTimeout)
	defer enough()
	return true, orStopped(ctx, review.Archived(ctx, req.GetPath(), req.GetName(), func(ctx context.Context, path string) (io.ReadCloser, error) {
		return f.loop.Archive(ctx, sb, path)
	}, func(data []byte) error { return stream.Send(&agboxv1.CopyOutResponse{Data: data}) }))
}

// copiedFrom says from where the workspace of a child's sandbox was copied. The parent may have
// another sandbox by now.
func (f fileCalls) copiedFrom(sb ledger.Sandbox) *agboxv1.DerivedSpec {
	from := proto.CloneOf(sb.Spec.GetDerived())
	if parent, known := f.ledger.Agent(from.GetParent()); known {
		from.ParentSandbox = parent.SandboxID
	}
	return from
}

// archiveTimeout bounds the comparison of a sandbox that does not run: the engine holds its
// container as long as somebody reads.
const archiveTimeout = 10 * time.Minute

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
