package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/spec/document"
)

// Bounds of what a person agrees to. With more, the agent starts without.
const (
	maxObeyed      = 256
	maxObeyedBytes = 4 << 20
	// maxLooked bounds the files and folders that are looked at, with what may be the name of one.
	maxLooked = 1 << 20
	// maxCuts is at how many marks of Markdown a path that is imported may end.
	maxCuts = 16
	// maxImports is the depth of imports; Claude Code follows five.
	maxImports = 5
)

// obeyed is the question about the files of a folder that an agent obeys. It has an error if
// they cannot all be shown.
func (o *presetOptions) obeyed(ctx context.Context, folder string) (trustQuestion, error) {
	s := &settingsSearch{ctx: ctx, folder: folder, preset: o.preset, seen: make(map[string]bool), followed: make(map[string]int), deep: make(map[string]bool), copied: o.workspace != ""}
	s.q = trustQuestion{Path: filepath.Join(folder, o.preset.Obeys[0]), Title: o.preset.Title + " obeys files of " + folder + " before it asks you anything:"}
	for _, name := range o.preset.Obeys {
		if err := s.all(name); err != nil {
			return s.q, err
		}
	}
	if len(o.preset.Nested)+len(o.preset.Imports) == 0 {
		return s.q, nil
	}
	err := s.walk("", func(file string) error {
		if slices.ContainsFunc(strings.Split(file, "/"), func(part string) bool { return slices.Contains(o.preset.Nested, part) }) {
			if err := s.settings(file); err != nil {
				return err
			}
		}
		if !s.instructions(file) {
			return nil
		}
		return s.importsOf(file, maxImports)
	})
	for _, file := range slices.Sorted(maps.Keys(s.deep)) {
		err = errors.Join(err, s.more(file, fmt.Sprintf("brings in more files, which are not shown: they are more than %d steps away", maxImports)))
	}
	return s.q, err
}

// instructions reports whether the agent reads a file as instructions that may import others.
func (s *settingsSearch) instructions(file string) bool {
	return slices.Contains(s.preset.Imports, filepath.Base(file)) || filepath.Ext(file) == ".md" &&
		slices.ContainsFunc(s.preset.Rules, func(rules string) bool { return strings.Contains("/"+file, "/"+rules+"/") })
}

// settingsSearch collects the files that an agent obeys.
type settingsSearch struct {
	ctx    context.Context
	folder string
	preset *codingAgent
	q      trustQuestion
	seen   map[string]bool
	// followed is how many more steps of imports were followed from a file.
	followed map[string]int
	// deep are files of instructions whose imports are not followed.
	deep   map[string]bool
	bytes  int
	looked int
	// copied means that the sandbox gets a copy of the folder.
	copied bool
}

// walk calls fn for each file below a path of the folder, with its path in the folder. What
// does not exist has no files. Links are files here, and none is followed.
func (s *settingsSearch) walk(name string, fn func(file string) error) error {
	return filepath.WalkDir(filepath.Join(s.folder, name), func(path string, entry fs.DirEntry, err error) error {
		if err := s.look(); err != nil {
			return err
		}
		switch {
		case err == nil && entry.IsDir() && entry.Name() == ".git" && path != filepath.Join(s.folder, name):
			return fs.SkipDir // what git keeps is no part of the work tree
		case errors.Is(err, fs.ErrNotExist), err == nil && entry.IsDir():
			return nil
		case errors.Is(err, fs.ErrPermission) && s.copied && entry != nil && entry.IsDir():
			return fs.SkipDir // it cannot be copied either
		}
		file, relErr := filepath.Rel(s.folder, path)
		if err = errors.Join(err, relErr); err != nil {
			return err
		}
		return fn(file)
	})
}

// look counts a file or folder that is looked at, whether or not it exists.
func (s *settingsSearch) look() error {
	if s.looked++; s.looked > maxLooked {
		return fmt.Errorf("the folder has more than %d files, folders and names that may be those of files", maxLooked)
	}
	return s.ctx.Err()
}

// all adds a file, or all files of a folder.
func (s *settingsSearch) all(name string) error { return s.walk(name, s.settings) }

// settings adds a file, and the files of the folder that it names.
func (s *settingsSearch) settings(file string) error {
	content, err := s.add(file, "may run programs with your login, such as files of the folder that are not shown, or send it elsewhere")
	if err != nil || content == nil {
		return err
	}
	for _, name := range namedIn(string(content)) {
		for _, at := range []string{name, filepath.Join(filepath.Dir(file), name)} {
			if err := s.named(at, file, strings.HasPrefix(name, "./")); err != nil {
				return err
			}
		}
	}
	return nil
}

// named adds a file that another one names, or with whole the files of a folder.
func (s *settingsSearch) named(name, by string, whole bool) error {
	if !filepath.IsLocal(name) || filepath.Clean(name) == "." {
		return nil
	}
	if err := s.look(); err != nil {
		return err
	}
	info, err := os.Lstat(filepath.Join(s.folder, name))
	if err != nil || info.IsDir() && !whole {
		return nil
	}
	return s.walk(filepath.Clean(name), func(file string) error {
		_, err := s.add(file, "is named by "+by)
		return err
	})
}

// add adds a file. It returns no content if it was there.
func (s *settingsSearch) add(file, why string) ([]byte, error) {
	if s.seen[file] {
		return nil, nil
	}
	s.seen[file] = true
	content, err := filesystem.ReadWithin(s.folder, file, document.MaxBytes)
	s.bytes += len(content)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the file %s cannot be read: %w", file, err)
	case len(s.q.Files) == maxObeyed:
		return nil, fmt.Errorf("%s obeys more than %d files of the folder", s.preset.Title, maxObeyed)
	case s.bytes > maxObeyedBytes:
		return nil, fmt.Errorf("%s obeys files of the folder with more than %d MiB", s.preset.Title, maxObeyedBytes>>20)
	}
	s.q.Files = append(s.q.Files, newTrustFile(filepath.Join(s.folder, file), content, strings.HasPrefix(filepath.Base(file), ".env")))
	s.q.Requests = append(s.q.Requests, hostRequest{Text: fmt.Sprintf("%-9s %s, which %s", "settings", file, why), Dangerous: true})
	return content, nil
}

// importsOf adds a file of instructions if it imports others, and those, up to a number of steps.
func (s *settingsSearch) importsOf(file string, depth int) error {
	if before, was := s.followed[file]; was && before >= depth {
		return nil
	}
	s.followed[file] = depth
	delete(s.deep, file)
	content, err := filesystem.ReadWithin(s.folder, file, document.MaxBytes)
	if err != nil {
		return fmt.Errorf("the file %s cannot be read: %w", file, err)
	}
	names, unclear := importedBy(string(content))
	if unclear != "" {
		_, err := s.add(file, "brings other files into what the model is told")
		if err = errors.Join(err, s.more(file, fmt.Sprintf("may bring in files that are not shown: %q has too many marks", "@"+cut(unclear, 20)))); err != nil {
			return err
		}
	}
	for _, name := range names {
		at := filepath.Join(filepath.Dir(file), name)
		outside := strings.HasPrefix(name, "~") || filepath.IsAbs(name) || !filepath.IsLocal(at)
		if !outside {
			if err := s.look(); err != nil {
				return err
			}
			if info, err := os.Lstat(filepath.Join(s.folder, at)); err != nil || info.IsDir() {
				continue // a name, such as that of a person
			}
		}
		if _, err := s.add(file, "brings other files into what the model is told"); err != nil {
			return err
		}
		switch {
		case depth == 0:
			s.deep[file] = true
			return nil
		case outside:
			err = s.more(file, "brings in "+name+", which is outside of the folder")
		default:
			if _, err = s.add(at, "is imported by "+file); err == nil {
				err = s.importsOf(at, depth-1)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// more adds a line about an import that is not shown.
func (s *settingsSearch) more(file, what string) error {
	text := fmt.Sprintf("%-9s %s %s", "import", file, what)
	if s.seen[text] {
		return nil
	}
	if s.seen[text] = true; len(s.q.Requests) >= 2*maxObeyed {
		return fmt.Errorf("%s brings in too many files", file)
	}
	s.q.Requests = append(s.q.Requests, hostRequest{Text: text, Dangerous: true})
	return nil
}

// imported finds imports such as "@docs/rules.md", in which spaces are escaped. Claude Code looks
// for them at the beginning of each piece of text between the marks of Markdown.
var imported = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s\v\p{Z}\x{FEFF}*_~\[(|>])@((?:[^\s\v\p{Z}\x{FEFF}\\]|\\ )+)`)
})

// maxPath is the longest path that Linux opens, in bytes.
const maxPath = 4096

// importedBy returns what a text may import: each path as it stands, and without the marks that
// may follow it. unclear is one with more marks than maxCuts, where the others are not tried; empty
// if there is none.
func importedBy(content string) (all []string, unclear string) {
	for _, found := range imported().FindAllStringSubmatch(content, -1) {
		name := strings.ReplaceAll(found[1], `\ `, " ")
		name = name[:min(len(name), maxPath)]
		if name[0] == '~' || name[0] == '/' { // no file of the folder: it is only shown
			all = append(all, strings.TrimRight(name, afterPath))
			continue
		}
		cuts := 0
		for end := range len(name) {
			if strings.IndexByte("*~]|<>#)", name[end]) < 0 {
				continue
			}
			if cuts++; cuts > maxCuts {
				unclear = name
				break
			}
			all = append(all, name[:end], strings.TrimRight(name[:end], afterPath))
		}
		all = append(all, name, strings.TrimRight(name, afterPath))
	}
	return slices.Compact(slices.DeleteFunc(all, func(name string) bool { return name == "" })), unclear
}

// afterPath may follow a path and be no part of it.
const afterPath = ".,;:)\"'*_~]|<>"

// namedIn returns the parts of a text that may be paths in the folder. What follows
// "${CLAUDE_PROJECT_DIR}" or "/workspace" begins with "./".
func namedIn(text string) []string {
	seen := make(map[string]bool)
	for _, word := range strings.FieldsFunc(projectDir().ReplaceAllString(text, " ./"), func(r rune) bool { return strings.ContainsRune(" \t\r\n\\\"'`,;=()[]{}<>|&", r) }) {
		word = strings.TrimPrefix(strings.TrimPrefix(word, "file:"), "@")
		if strings.ContainsAny(word, "./") {
			seen[word] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

var projectDir = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:\$\{?CLAUDE_PROJECT_DIR\}?|\$PWD|/workspace)[\\"']*/`)
})

// obey makes sure that a person agrees to the files of the folder that make the agent run
// programs, or send the login elsewhere, before it has asked anything. Without a yes the
// agent starts without them.
func (o *presetOptions) obey(ctx context.Context, a *app, c *client.Client) error {
	folder := o.folder()
	if folder == "" || o.trust {
		return nil
	}
	q, err := o.obeyed(ctx, folder)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(q.Requests) == 0 && err == nil {
		return nil
	}
	if err == nil {
		yes, err := o.agreeToObey(ctx, a, c, q, folder)
		if yes || err != nil {
			return err
		}
	} else {
		a.say("%v.", err)
	}
	return o.leaveOut(a)
}

// agreeToObey reports whether a person, or the operator, agrees to the files.
func (o *presetOptions) agreeToObey(ctx context.Context, a *app, c *client.Client, q trustQuestion, folder string) (bool, error) {
	store, err := newTrustStore()
	if err != nil {
		return false, err
	}
	known, before, err := store.trusted(q)
	if known || err != nil {
		return known, err
	}
	if byPolicy, err := trustedByPolicy(ctx, c, folder); byPolicy || err != nil {
		return byPolicy, err
	}
	if !a.canAsk(q) {
		return false, nil
	}
	yes, err := a.ask(ctx, q, before, "Let "+o.preset.Title+" use them? Otherwise it starts without.")
	if yes {
		err = store.remember(q, a.now())
	}
	return yes, err
}

// leaveOut starts the agent without the files, by its own switch, or else without a copy
// of them.
func (o *presetOptions) leaveOut(a *app) error {
	names := strings.Join(slices.Concat(o.preset.Obeys, o.preset.Imports), ", ")
	if o.preset.Copied && o.workspace == "" {
		return usagef("%s has no switch to leave out %s of a mounted folder: agree to them on a terminal, or give --trust.", o.preset.Title, names)
	}
	if o.preset.Copied {
		for _, name := range o.preset.Obeys {
			o.excludes = append(o.excludes, "/"+name)
		}
	}
	o.off = true
	o.labels = append(o.labels, settingsLabel+"="+settingsOff)
	a.say("%s starts without the %s of this folder, which nobody has agreed to. --trust uses them.", o.preset.Title, names)
	return nil
}
