package edits

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// storedAnew finds the files that a commit of the sandbox only stores in another way, as `git add
// --renormalize` does: the workspace has the version from before, or the tip's with CRLF as it was
// copied in, and under the attributes of the tip, git stores that as the tip has it. all are the files that commits have changed, and known
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
			from := two.was
			if f.Sum != now.Sum && Same(now, h.Copy[name]) {
				from = two.tip // it was not committed when it was copied in
			} else if f.Sum != now.Sum || two.was.object == two.tip.object {
				continue
			}
			content, err := b.objects.content(from.object, maxRead)
			if err != nil {
				return err
			}
			if from == two.tip {
				content = bytes.ReplaceAll(content, []byte("\n"), []byte("\r\n"))
			}
			if sha256.Sum256(content) != now.Sum {
				continue
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
	if len(tips) == 0 {
		return nil
	}
	if _, err := with.run(nil, "read-tree", h.Tip); err != nil {
		return err
	}
	names := slices.Collect(maps.Keys(tips))
	stored, err := b.stored(&with, listed(names))
	if status(err) > 0 { // a filter cannot store one
		stored, _, err = b.storedApart(&with, names)
	}
	for name, object := range tips {
		b.anew[name] = stored[name] == object
	}
	return err
}

// storedApart is stored for each filter and encoding apart. It leaves out the files of filters that
// fail, and those that do not have the encoding of their attributes: these are unfit.
func (b *branch) storedApart(with *git, names []string) (all map[string]string, unfit map[string]bool, err error) {
	attributes, err := with.attributes(listed(names), "working-tree-encoding", "filter")
	if err != nil {
		return nil, nil, err
	}
	alike := make(map[[2]string][]string)
	for _, name := range names {
		key := [2]string(attributes[name])
		alike[key] = append(alike[key], name)
	}
	all, unfit = make(map[string]string), make(map[string]bool)
	for key, some := range alike {
		stored, err := b.stored(with, listed(some))
		if status(err) > 0 && key[0] != "unspecified" {
			if some, err = with.fitting(some, unfit); err == nil {
				stored, err = b.stored(with, listed(some))
			}
		}
		if status(err) > 0 {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for _, name := range some {
			all[name] = stored[name]
		}
	}
	return all, unfit, nil
}

// fitting returns the files that git can store, and notes the others: it ends at the first one that
// it cannot.
func (g *git) fitting(names []string, unfit map[string]bool) (fit []string, err error) {
	for len(names) > 0 {
		out, err := g.asUser().run(strings.NewReader(listed(names)), "update-index", "--verbose", "--add", "--replace", "-z", "--stdin")
		if err != nil && status(err) == 0 {
			return nil, err
		}
		n, said := 0, string(out)
		for ; n < len(names); n++ {
			rest, is := strings.CutPrefix(said, "add '"+names[n]+"'\n")
			if !is {
				unfit[names[n]] = true
				break
			}
			said = rest
		}
		fit, names = append(fit, names[:n]...), names[min(n+1, len(names)):]
	}
	return fit, nil
}

// listed lists paths for git.
func listed(names []string) string {
	var list strings.Builder
	for _, name := range names {
		list.WriteString(name + "\x00")
	}
	return list.String()
}
