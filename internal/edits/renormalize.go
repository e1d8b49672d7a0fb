package edits

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// storedAnew finds the files that a commit of the sandbox only stores in another way, as `git add
// --renormalize` does: the workspace has the version from before, and under the attributes of the
// tip, git stores that as the tip has it. all are the files that commits have changed, and known
// those that the workspace has changed since.
func (b *branch) storedAnew(h *History, known map[string]bool, all ...map[string]twoEntries) error {
	b.anew = make(map[string]bool)
	with := *b.own
	with.dir = filepath.Join(b.own.dir, "anew")
	with.env = append(slices.Clone(with.env), "GIT_WORK_TREE="+with.dir, "GIT_INDEX_FILE="+with.dir+".index")
	tips := make(map[string]string)
	for _, differing := range all {
		for name, two := range differing {
			now := h.Base[name]
			if now == nil || now.Link || known[name] || tips[name] != "" || two.was.object == "" || two.was.mode == "160000" || two.tip.mode != now.Mode() || path.Base(name) == ".gitattributes" {
				continue
			}
			f, err := b.objects.file(two.was)
			if err != nil {
				return err
			}
			if f.Sum != now.Sum || two.was.object == two.tip.object {
				continue
			}
			content, err := b.objects.content(two.was.object, maxRead)
			if err != nil {
				return err
			}
			file := filepath.Join(with.dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(file, content, 0o600); err != nil {
				return err
			}
			tips[name] = two.tip.object
		}
	}
	var list strings.Builder
	for name := range tips {
		list.WriteString(name + "\x00")
	}
	stored, err := b.stored(&with, h.Tip, list.String())
	if status(err) > 0 {
		return nil // a filter cannot store one
	}
	for name, object := range tips {
		b.anew[name] = stored[name] == object
	}
	return err
}
