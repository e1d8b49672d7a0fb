package spec

import (
	"strings"

	"github.com/agbox/agbox/spec/document"
)

// buildRefused are the parts of a build without which it would fail or be another one, and
// what to do instead.
var buildRefused = map[string]string{
	"additional_contexts": "copy what it needs into the context",
	"ssh":                 "no key of this machine is handed to a build; copy what it needs into the context",
	"secrets":             "no secret is handed to a build; make the image with `agbox image build`, and name it",
	"privileged":          "a build has no such rights here",
	"entitlements":        "a build has no such rights here",
}

// build reads how the image of a service is built.
func (s *composeService) build(n *document.Node, at *document.Origin) {
	b := s.below("build", at)
	if n.Kind == document.String {
		s.context(b, n.Text, at)
		return
	}
	if n.Kind != document.Map {
		s.Report.Problem(at, "Here should be the folder of the Dockerfile, or a map with the key context")
		return
	}
	context := nodeText(n.Get("context"))
	if context == "" && n.Get("dockerfile_inline") == nil {
		s.context(b, ".", at)
	}
	for _, e := range n.Entries {
		below := s.At(e.Key, document.Child(at.Path, e.Key.Text))
		switch key := e.Key.Text; key {
		case "context":
			s.context(b, context, below)
		case "dockerfile":
			b.set("dockerfile", dockerfileIn(context, e.Value.Text), below)
		case "dockerfile_inline", "target":
			if text, ok := s.word(e.Value, below); ok {
				b.set(key, text, below)
			}
		case "args":
			s.buildArgs(b, e.Value, below)
		default:
			if why := buildRefused[key]; why != "" {
				s.Report.Problem(below, "%s of the build of service %s is not supported: %s", key, s.name, why)
			} else if !strings.HasPrefix(key, "x-") {
				s.leftOut(below, "build."+key, "")
			}
		}
	}
}

// context sets the folder of a build.
func (s *composeService) context(b *layer, text string, at *document.Origin) {
	if remote(text) {
		s.Report.Problem(at, "The build context of service %s is an address, and only folders of this machine are read: clone it, and name the folder", s.name)
		return
	}
	b.set("context", text, at)
}

func (s *composeService) buildArgs(b *layer, n *document.Node, at *document.Origin) {
	set := func(key, value string, at *document.Origin) { b.entry("args", key, value, at) }
	s.pairs(n, at, set, func(key string, at *document.Origin) {
		if value, ok := s.file.GetVariables()[key]; ok {
			set(key, value, at)
		}
	})
}

// imageOrBuild drops the name that a built image would get. Giving it would let a file put
// its own image in the place of another one on this machine.
func (s *composeService) imageOrBuild() {
	image := s.node.Get("image")
	if s.node.Get("build") == nil || image == nil {
		return
	}
	s.m.Clear(s.field("image"))
	delete(s.layer.at.Fields, "image")
}
