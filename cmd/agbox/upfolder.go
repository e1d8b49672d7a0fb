package main

import (
	"context"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// workspaceTarget is where a workspace is in a sandbox that names no other place.
const workspaceTarget = "/workspace"

// bringFolder adds the folder to a request as a copied workspace, unless the request has a
// workspace, brings the folder in otherwise, or wants none. It returns what to say when the
// sandbox is made.
func (o *upOptions) bringFolder(ctx context.Context, c *client.Client, input *client.SpecInput, folder, name string) (say string, err error) {
	given := input.Request.GetCreateSpec()
	if o.noWorkspace || given.GetWorkspace().GetSource() != "" || wantsNoWorkspace(input.Request) {
		return "", nil
	}
	with := given.GetWorkspace() // flags about what to leave out
	given.Workspace = nil
	before, _, err := resolveQuietly(ctx, c, input.Request)
	if err != nil || before == nil || before.GetWorkspace() != nil || hasFolder(before, folder) {
		given.Workspace = with
		return "", err // creating the sandbox reports the problems
	}
	if given.Workspace = with; with == nil {
		given.Workspace = new(agboxv1.WorkspaceSpec)
	}
	if why := noRoom(before); why != "" {
		given.Workspace = nil
		return copiesNothing(why), nil
	}
	w := given.GetWorkspace()
	// What the main command finds in its image stays where the command expects it.
	w.Source, w.Mount, w.KeepCommandDir = folder, proto.Bool(false), proto.Bool(true)
	after, problem, err := resolveQuietly(ctx, c, input.Request)
	switch {
	case err != nil:
		return "", err
	case after == nil && with == nil:
		given.Workspace = nil
		return copiesNothing(problem), nil
	case after == nil:
		return "", nil // creating the sandbox reports the problems
	}
	return "Copying this folder to " + workspaceTarget + " in the sandbox. `agbox diff " + name + "` shows what changes there, `agbox apply " + name + "` brings it back. --no-workspace copies nothing.", nil
}

func copiesNothing(why string) string {
	return "This folder is not copied into the sandbox. " + why + " `agbox up --workspace DIR:TARGET` copies a folder to another place, --no-workspace copies none."
}

// noRoom says why nothing can be copied to the usual place of a workspace; "" if it can. A
// copy to a place within a writable mount would change the host.
func noRoom(s *agboxv1.CreateSpec) string {
	if s.GetSecurity().GetReadOnlyRoot() {
		return "The root of the sandbox is read-only."
	}
	var targets []string
	for _, m := range s.GetMounts() {
		targets = append(targets, m.GetTarget())
	}
	for _, c := range s.GetCopies() {
		targets = append(targets, c.GetTarget())
	}
	for _, v := range s.GetVolumes() {
		targets = append(targets, v.GetTarget())
	}
	for _, t := range s.GetTmpfs() {
		targets = append(targets, t.GetTarget())
	}
	for _, target := range targets {
		if target = path.Clean(target); within(target, workspaceTarget) || within(workspaceTarget, target) {
			return "The file puts something else at " + printable(target) + "."
		}
	}
	return ""
}

// within reports whether a clean absolute path is a folder or below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// resolveQuietly returns what a request comes to, nil if it has problems, with the first of
// them. It is also nil if the daemon is too old to say.
func resolveQuietly(ctx context.Context, c *client.Client, in *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSpec, string, error) {
	out, err := c.ResolveSpec(ctx, in)
	var failure *client.Error
	if errors.As(err, &failure) && failure.Code == codes.Unimplemented {
		return nil, "", nil
	}
	problem := ""
	if all := out.GetProblems(); len(all) > 0 {
		problem = printable(all[0].GetMessage())
	}
	return out.GetCreateSpec(), problem, err
}

// wantsNoWorkspace reports whether a devcontainer.json says that there is no workspace.
func wantsNoWorkspace(in *agboxv1.CreateSandboxRequest) bool {
	return slices.ContainsFunc(in.GetBaseFiles(), func(file *agboxv1.ConfigFile) bool {
		if file.GetFormat() != agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER {
			return false
		}
		node := document.JSONC("", file.GetContent(), new(document.Report))
		if node == nil {
			return false
		}
		mount := node.Get("workspaceMount")
		return mount != nil && mount.Text == ""
	})
}

// hasFolder reports whether the primary mounts a folder, gets a copy of it, or has it in
// what it mounts or gets a copy of.
func hasFolder(s *agboxv1.CreateSpec, folder string) bool {
	for _, m := range s.GetMounts() {
		if holds(m.GetSource(), folder) {
			return true
		}
	}
	return slices.ContainsFunc(s.GetCopies(), func(c *agboxv1.CopySpec) bool { return holds(c.GetSource(), folder) })
}

// holds reports whether a path is the folder or one above it.
func holds(path, folder string) bool {
	return within(resolvedLinks(folder), resolvedLinks(path))
}

// resolvedLinks resolves the symbolic links of a path that can be resolved.
func resolvedLinks(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return filepath.Clean(path)
}
