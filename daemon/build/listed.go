package build

import (
	"slices"
	"strings"

	"github.com/agbox/agbox/runtime"
)

// PresetPrefix begins the names of the images of presets, which clients build.
const PresetPrefix = "agbox/preset-"

// Listed is an image of the engine.
type Listed struct {
	runtime.ListedImage
	// Built is set if all its names are those of images that agbox makes.
	Built bool
	// Needed is set if a container uses it, or if an image is based on it that is needed or that
	// agbox has not made.
	Needed bool
}

// List says of the images of the engine what they are to agbox. It leaves out those between the
// steps of a build.
func List(all []runtime.ListedImage) []Listed {
	parents, based, needed := make(map[string]string, len(all)), make(map[string]bool), make(map[string]bool)
	for _, i := range all {
		parents[i.ID] = i.Parent
		based[i.Parent] = true
	}
	var list []Listed
	for _, i := range all {
		built := len(i.Names) > 0 && !slices.ContainsFunc(i.Names, func(name string) bool {
			return !strings.HasPrefix(name, Repository+":") && !strings.HasPrefix(name, PresetPrefix)
		})
		if i.Used {
			needed[i.ID] = true
		}
		if i.Used || len(i.Names) > 0 && !built {
			for id := parents[i.ID]; id != "" && !needed[id]; id = parents[id] {
				needed[id] = true
			}
		}
		if len(i.Names) > 0 || !based[i.ID] {
			list = append(list, Listed{ListedImage: i, Built: built})
		}
	}
	for i := range list {
		list[i].Needed = needed[list[i].ID]
	}
	return list
}
