package spec

import (
	"path"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// refusedKey refuses a key that changes what the service is.
func refusedKey(why string) func(*composeService, *document.Node, *document.Origin) {
	return func(s *composeService, _ *document.Node, at *document.Origin) {
		s.Report.Problem(at, "%s of service %s is not supported: %s", at.Path[lastDot(at.Path):], s.name, why)
	}
}

// lastDot is the index behind the last dot of a path.
func lastDot(text string) int {
	for i := len(text); i > 0; i-- {
		if text[i-1] == '.' {
			return i
		}
	}
	return 0
}

func (s *composeService) secrets(n *document.Node, at *document.Origin) {
	s.given("secrets", "/run/secrets", n, at)
}

func (s *composeService) configs(n *document.Node, at *document.Origin) {
	s.given("configs", "/", n, at)
}

// given copies the files that a service gets as secrets or configs into it. A target that
// is not absolute is below dir.
func (s *composeService) given(kind, dir string, n *document.Node, at *document.Origin) {
	for i, item := range items(n) {
		below := s.At(item, document.Item(at.Path, i))
		name, target, owner := item.Text, "", ""
		if item.Kind == document.Map {
			name, target = nodeText(item.Get("source")), nodeText(item.Get("target"))
			if uid := nodeText(item.Get("uid")); uid != "" {
				owner = uid
				if gid := nodeText(item.Get("gid")); gid != "" {
					owner += ":" + gid
				}
			}
			if item.Get("mode") != nil {
				s.leftOut(below, "mode of "+kind, "the file keeps its own")
			}
		}
		if target == "" {
			target = name
		}
		if !path.IsAbs(target) {
			target = path.Join(dir, target)
		}
		if source, ok := s.fileOf(kind, name, below); ok {
			s.add("copies", &agboxv1.CopySpec{Source: source, Target: target, Owner: owner}, below)
		}
	}
}

// fileOf returns the file that a top-level secret or config names.
func (s *composeService) fileOf(kind, name string, at *document.Origin) (string, bool) {
	entry := s.composeFile.node.Get(kind).Get(name)
	switch {
	case entry == nil:
		s.Report.Problem(at, "There is no %.80q under %s at the top of the file: add it there", name, kind)
	case entry.Get("file") != nil:
		return s.word(entry.Get("file"), at)
	default:
		s.Report.Problem(at, "%s has no file under %s, and nothing else is read: write its content into a file, and name that", name, kind)
	}
	return "", false
}
