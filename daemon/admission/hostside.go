package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/projections"
)

// hostSide adds the problems that this host has with a resolved spec: missing or refused
// sources, and tools without any files here. It sets what the tools project.
func (c *Controller) hostSide(asked *requestList) {
	req, result := asked.req, asked.result
	resolved := result.Draft()
	if resolved == nil {
		return
	}
	check := c.o.Host
	check.Home = req.GetHomeDir()
	for _, p := range check.Spec(resolved) {
		result.Problem(p.Path, "%s", strings.TrimSuffix(p.Err.Message, "."))
	}
	c.ownFolderOnly(asked, resolved)
	c.gitOfWorktree(check, result, resolved)
	repositoriesSearched(check, result, resolved)
	objectsOfOthers(result, resolved)
	keepsIDs(result, resolved)
	c.forbidden(result, resolved)
	host := projections.Host{Home: req.GetHomeDir(), Env: req.GetHostEnv(), Caches: c.o.Paths.ToolCaches()}
	var seen []string
	for i, name := range resolved.GetBuiltinTools() {
		tool := projections.Find(name)
		switch {
		case tool == nil:
			result.Problem([]any{"builtin_tools", i}, "There is no built-in tool %.80q: write %s", name, strings.Join(projections.Names(), ", "))
		case !slices.Contains(seen, name):
			seen = append(seen, name)
			project(result, resolved, host, projected{tool, i, req.GetUntrustedFiles() && !byCaller(result, resolved, name), asked.published})
		}
	}
}

// ownFolderOnly refuses writable mounts that untrusted files ask for outside of their own
// folder. The caller may ask for them.
func (c *Controller) ownFolderOnly(l *requestList, resolved *agboxv1.CreateSpec) {
	if !l.req.GetUntrustedFiles() {
		return
	}
	refuse := func(source, flag string, path ...any) {
		if l.origin(path) == nil {
			return
		}
		if _, inside := l.source(source, path...); !inside && !c.o.Host.Bound().Opens(l.resolved(source)) {
			l.result.Problem(path, "A file may mount only its own folder writable, because anybody may have written it: mount %.200s read-only, or give the flag %s if you want it", source, flag)
		}
	}
	for i, m := range resolved.GetMounts() {
		if m.GetWritable() {
			refuse(m.GetSource(), fmt.Sprintf("--mount %.200s:%.200s:rw", m.GetSource(), m.GetTarget()), "mounts", i, "source")
		}
	}
	l.contextsInside(resolved)
	if w := resolved.GetWorkspace(); w.GetMount() {
		refuse(w.GetSource(), fmt.Sprintf("--mount-workspace %.200s", w.GetSource()), "workspace", "source")
	}
}

// byCaller reports whether the caller itself names a tool, and not only a file.
func byCaller(result *spec.Result, resolved *agboxv1.CreateSpec, name string) bool {
	for i, other := range resolved.GetBuiltinTools() {
		if other == name && result.Origin("builtin_tools", i).File == "" {
			return true
		}
	}
	return false
}

// projected is a tool that a request names at an index of builtin_tools.
type projected struct {
	*projections.Tool
	index int
	// withoutCredentials leaves out files that prove an identity.
	withoutCredentials bool
	// published means that a client of the published contract names it.
	published bool
}

// dispensable reports whether a sandbox works without an item that is missing here.
func (p projected) dispensable(item projections.Item, envs map[string]string) bool {
	return item.Dispensable(envs) || p.published && item.PublishedOptional
}

// project adds the projections of one tool. It is where a credential that is a file or a socket
// enters a sandbox, as ledger.Reveal is for a variable: docs/security.md lists such places.
func project(result *spec.Result, resolved *agboxv1.CreateSpec, host projections.Host, tool projected) {
	at, withoutCredentials := []any{"builtin_tools", tool.index}, tool.withoutCredentials
	for _, found := range host.Find(tool.Tool) {
		switch {
		case withoutCredentials && found.Credential && found.Missing != "":
			// Nothing to project.
		case withoutCredentials && found.Credential:
			result.Notice(at, "The %s is not brought in, because a file must not ask for credentials: give the flag --tool %s if you want it", found.What, tool.Name)
		case found.Missing != "" && !tool.dispensable(found.Item, resolved.GetEnvs()):
			result.Problem(at, "%s", strings.TrimSuffix(found.Missing, "."))
		case found.Missing != "" && found.Hint != "":
			result.Notice(at, "%s", strings.TrimSuffix(found.Missing, "."))
		case found.Missing != "":
			// The spec replaces it.
		case taken(resolved, found.To):
			result.Notice(at, "The %s is not brought in, because the spec puts something else at %s", found.What, found.To)
		default:
			resolved.ToolProjections = append(resolved.ToolProjections, &agboxv1.ToolProjection{
				Tool: tool.Name, Kind: kinds[found.Kind], Source: found.Source, Target: found.To,
				Content: found.Content, Envs: maps.Clone(found.Envs),
			})
		}
	}
}

// taken reports whether the spec itself mounts something at a path.
func taken(resolved *agboxv1.CreateSpec, where string) bool {
	return slices.ContainsFunc(resolved.GetMounts(), func(m *agboxv1.MountSpec) bool { return m.GetTarget() == where })
}

var kinds = map[projections.Kind]agboxv1.ProjectionKind{
	projections.Mount: agboxv1.ProjectionKind_PROJECTION_KIND_MOUNT,
	projections.Copy:  agboxv1.ProjectionKind_PROJECTION_KIND_COPY,
	projections.Cache: agboxv1.ProjectionKind_PROJECTION_KIND_CACHE,
	projections.File:  agboxv1.ProjectionKind_PROJECTION_KIND_FILE,
}
