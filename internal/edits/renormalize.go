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
		stored, err = b.storedApart(&with, names)
	}
	for name, object := range tips {
		b.anew[name] = stored[name] == object
	}
	return err
}

// storedApart is stored for each filter and encoding apart. It leaves out the files of those that
// fail.
func (b *branch) storedApart(with *git, names []string) (map[string]string, error) {
	out, err := with.run(strings.NewReader(listed(names)), "check-attr", "--cached", "-z", "--stdin", "filter", "working-tree-encoding")
	if err != nil {
		return nil, err
	}
	by, alike := make(map[string]string), make(map[string][]string)
	words := strings.Split(string(out), "\x00")
	for i := 2; i < len(words); i += 3 {
		by[words[i-2]] += words[i] + "\x00"
	}
	for _, name := range names {
		alike[by[name]] = append(alike[by[name]], name)
	}
	all := make(map[string]string)
	for _, some := range alike {
		stored, err := b.stored(with, listed(some))
		if status(err) > 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, name := range some {
			all[name] = stored[name]
		}
	}
	return all, nil
}

// listed lists paths for git.
func listed(names []string) string {
	var list strings.Builder
	for _, name := range names {
		list.WriteString(name + "\x00")
	}
	return list.String()
}
