package document

import (
	"cmp"
	"path/filepath"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// DockerfilesIn returns the Dockerfiles that a file builds with, relative to its folder.
func DockerfilesIn(format agboxv1.ConfigFormat, content []byte) []string {
	var all []string
	add := func(build *Node) {
		if build == nil || build.Get("dockerfile_inline") != nil {
			return
		}
		context := build.Text // the short form
		if build.Kind == Map {
			context = nodeText(build.Get("context"))
		}
		all = append(all, filepath.Join(cmp.Or(context, "."), cmp.Or(nodeText(build.Get("dockerfile")), "Dockerfile")))
	}
	switch format {
	case agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER: // relative to the file, not to the context
		node := JSONC("", content, new(Report))
		if name := cmp.Or(nodeText(node.Get("build").Get("dockerfile")), nodeText(node.Get("dockerFile"))); name != "" {
			all = append(all, name)
		}
	case agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE:
		for _, service := range YAML("", content, new(Report)).Get("services").entries() {
			add(service.Value.Get("build"))
		}
	case agboxv1.ConfigFormat_CONFIG_FORMAT_AGBOX:
		node := YAML("", content, new(Report))
		add(node.Get("build"))
		if services := node.Get("services"); services != nil {
			for _, service := range services.Items {
				add(service.Get("build"))
			}
		}
	}
	return all
}

func nodeText(n *Node) string {
	if n == nil {
		return ""
	}
	return n.Text
}
