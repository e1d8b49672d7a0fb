package spec

import (
	"path/filepath"

	"github.com/agbox/agbox/spec/document"
)

// envFile reads the variables of files. Those under environment override them.
func (s *composeService) envFile(n *document.Node, at *document.Origin) {
	said := make(map[string]bool)
	s.pairs(orNull(s.node.Get("environment")), at, func(key, _ string, _ *document.Origin) { said[key] = true }, func(key string, _ *document.Origin) { said[key] = true })
	for i, item := range items(n) {
		below := s.At(item, document.Item(at.Path, i))
		name, required := item.Text, true
		if item.Kind == document.Map {
			name, required = nodeText(item.Get("path")), nodeText(item.Get("required")) != "false"
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(below.File), name)
		}
		file := namedFile(s.file, name)
		if file == nil {
			if required {
				s.Report.Problem(below, "The file %.200s of service %s is not there: make it, or write {path: %[1]s, required: false}", name, s.name)
			}
			continue
		}
		for key, value := range document.EnvFile(file.GetContent()) {
			if !said[key] {
				s.entry("envs", key, value, below)
			}
		}
	}
}
