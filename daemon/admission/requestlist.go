package admission

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
)

// requestList collects requests.
type requestList struct {
	req    *agboxv1.CreateSandboxRequest
	result *spec.Result
	out    *agboxv1.HostRequests
	// links has where each path led when it was first resolved. All decisions about a
	// request use the same answer.
	links map[string]string
	// pulled reports whether the engine pulls an image; nil if it pulls none.
	pulled func(image pullable) (bool, error)
	// unanswered is an error of pulled.
	unanswered error
	// published means that the request is of a client of the published contract.
	published bool
}

func newRequestList(req *agboxv1.CreateSandboxRequest, result *spec.Result) *requestList {
	return &requestList{req: req, result: result, links: make(map[string]string)}
}

// resolved is resolvedPath, with one answer per request.
func (l *requestList) resolved(path string) string {
	to, ok := l.links[path]
	if !ok {
		to = resolvedPath(path)
		l.links[path] = to
	}
	return to
}

// origin returns where a field was written, or nil if no file sets it.
func (l *requestList) origin(path []any) *document.Origin {
	if at := l.result.Origin(path...); at.File != "" {
		return at
	}
	return nil
}

// add adds a request if it comes from a file.
func (l *requestList) add(path []any, kind string, dangerous bool, format string, args ...any) {
	at := l.origin(path)
	if at == nil {
		return
	}
	l.out.Requests = append(l.out.Requests, &agboxv1.HostRequest{
		File: at.File, Line: uint32(at.Line), Field: at.Path, Kind: kind, Dangerous: dangerous, Text: fmt.Sprintf(format, args...),
	})
}

// source returns a source with all symbolic links resolved, and whether it is inside the
// folder of the file that names it. path is that of the field.
func (l *requestList) source(name string, path ...any) (shown string, inside bool) {
	folder, source := l.resolved(l.folderOf(l.result.Origin(path...).File)), l.resolved(name)
	inside = source == folder || folder != "/" && strings.HasPrefix(source, folder+"/")
	if source != filepath.Clean(name) {
		return fmt.Sprintf("%s (which is %s)", name, source), inside
	}
	return name, inside
}

// folderOf returns the folder that a file describes: the one that has the file, or the
// parent of .devcontainer. The sandbox file is named as by the caller; base files have
// absolute paths.
func (l *requestList) folderOf(file string) string {
	if file == cmp.Or(l.req.GetConfigPath(), spec.DefaultName) {
		return l.req.GetConfigDir()
	}
	dir := filepath.Dir(file)
	if filepath.Base(dir) == ".devcontainer" {
		return filepath.Dir(dir)
	}
	return dir
}

// resolvedPath resolves symbolic links as far as possible. A path that cannot be resolved
// is refused elsewhere.
func resolvedPath(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	return filepath.Clean(path)
}

// pullKind is the kind of a request for an image of a registry.
const pullKind = "pull"

// pullable is a container whose image a registry may have.
type pullable interface {
	GetImage() string
	GetPlatform() string
	GetPullPolicy() agboxv1.PullPolicy
}
