package edits

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// target is a repository of the user. Git works with its own, empty one, which reads the objects
// of the target and has only those of the target's settings that say what to write, not what to
// run. The target itself only tells its references and gets new objects and one reference.
type target struct {
	// own has the new objects until they are brought to the target.
	own *git
	// refs is git in the target.
	refs *git
	// common is the folder with its objects, top its work tree, and prefix the path of the
	// folder in it, with a slash at the end, or empty.
	common, top, prefix string
	// format names its hashes.
	format string
	// settings has the last value of each setting, and filters the names of the filters that
	// only the target's own settings define as they are.
	settings map[string]string
	filters  []string
	// cleans are the filters that the settings of own have a command for, to store files.
	cleans map[string]bool
	// lfs is the folder in which git-lfs keeps contents.
	lfs string
}

// copied are the settings of a target that count.
var copied = []string{
	"core.autocrlf", "core.eol", "core.attributesfile", "core.excludesfile", "core.sharedrepository", "core.compression", "core.loosecompression", "i18n.commitencoding",
	"user.name", "user.email", "author.name", "author.email", "committer.name", "committer.email", "user.useconfigonly",
}

// workTree finds the repository around a folder: its git folder, that which its work trees
// share, the top of the work tree, the format of its objects, and the path from there.
func workTree(ctx context.Context, folder string) ([]string, error) {
	found := &git{ctx: ctx, dir: folder, ownConfig: true}
	find := func(what ...string) (string, error) {
		out, err := found.run(nil, append([]string{"rev-parse"}, what...)...)
		if failed := new(gitError); errors.As(err, &failed) {
			err = fmt.Errorf("%s is in no work tree of a git repository that can be used (%s)", folder, failed.said)
		}
		return strings.TrimSuffix(string(out), "\n"), err
	}
	places := []string{"--absolute-git-dir", "--git-common-dir", "--show-toplevel", "--show-object-format", "--show-prefix"}
	all, err := find(places...)
	if err != nil {
		return nil, err
	}
	where := strings.Split(all, "\n")
	if len(where) != len(places) { // a path has line breaks
		where = nil
		for _, what := range places {
			one, err := find(what)
			if err != nil {
				return nil, err
			}
			where = append(where, one)
		}
	}
	if !filepath.IsAbs(where[0]) || !filepath.IsAbs(where[2]) {
		return nil, fmt.Errorf("%s is in no work tree of a git repository", folder)
	}
	return where, nil
}

// openTarget opens the repository around a folder. allFilters allows the filters that only its
// own settings define.
func openTarget(ctx context.Context, folder, dir string, allFilters bool) (*target, error) {
	where, err := workTree(ctx, folder)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(where[1]) {
		where[1] = filepath.Join(folder, where[1])
	}
	t := &target{refs: &git{ctx: ctx, dir: dir, gitDir: where[0], ownConfig: true}, common: where[1], top: where[2], format: where[3], prefix: where[4]}
	var settings []byte
	err = together(
		func() (err error) {
			t.own, err = scratchRepository(ctx, dir, "--object-format="+t.format)
			return err
		},
		func() (err error) {
			settings, err = t.refs.run(nil, "config", "--show-scope", "-z", "--list")
			return err
		},
	)
	if err != nil {
		return nil, err
	}
	t.configure(settings, allFilters)
	return t, t.share()
}

// configure gives git the settings of the target that count. out are all.
func (t *target) configure(out []byte, allFilters bool) {
	t.settings = make(map[string]string)
	users := make(map[string]string) // what the user's and the system's own files say
	words := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(words); i += 2 {
		key, value, has := strings.Cut(words[i+1], "\n")
		if !has {
			value = "true" // a key alone
		}
		switch words[i] {
		case "local", "worktree":
			t.settings[key] = value
		case "system", "global":
			t.settings[key], users[key] = value, value
		}
	}
	all := make(map[string]string)
	for key, value := range t.settings {
		name, isFilter := filterOf(key)
		switch {
		case isFilter && users[key] == value, isFilter && allFilters, slices.Contains(copied, key):
			all[key] = value
		case isFilter && !slices.Contains(t.filters, name):
			t.filters = append(t.filters, name)
		}
	}
	slices.Sort(t.filters)
	t.cleans = make(map[string]bool)
	for key, value := range all {
		if name, isFilter := filterOf(key); isFilter && value != "" && slices.Contains([]string{"clean", "process"}, key[strings.LastIndexByte(key, '.')+1:]) {
			t.cleans[name] = true
		}
	}
	// git-lfs keeps the contents of large files there.
	storage := cmp.Or(t.settings["lfs.storage"], "lfs")
	if !filepath.IsAbs(storage) {
		storage = filepath.Join(t.common, storage)
	}
	all["lfs.storage"], t.lfs = storage, storage
	n := 0
	for key, value := range all {
		t.own.env = append(t.own.env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", n, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, value))
		n++
	}
	t.own.env = append(t.own.env, "GIT_CONFIG_COUNT="+strconv.Itoa(n))
}

// filterOf returns the name of the filter that a setting is of.
func filterOf(key string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(key, "filter.")
	end := strings.LastIndexByte(rest, '.')
	return rest[:max(end, 0)], ok && end > 0
}

// gits are the names in a folder of git that git itself reads. Programs behind filters, such as
// git-crypt, have others.
var gits = []string{"hooks", "objects", "refs", "logs", "info", "worktrees", "modules", "branches", "reftable", "rebase-merge", "rebase-apply", "sequencer", "lfs"}

// share lets the own repository read the objects of the target, and what else has no settings.
func (t *target) share() error {
	err := errors.Join(t.lend(t.own), os.MkdirAll(filepath.Join(t.own.gitDir, "info"), 0o700))
	if err != nil {
		return err
	}
	links := []string{"info/attributes", "info/exclude", "shallow"}
	entries, err := os.ReadDir(t.common)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains(gits, e.Name()) {
			links = append(links, e.Name())
		}
	}
	for _, name := range links {
		if _, failed := os.Stat(filepath.Join(t.common, name)); failed == nil {
			err = errors.Join(err, os.Symlink(filepath.Join(t.common, name), filepath.Join(t.own.gitDir, name)))
		}
	}
	return err
}

// lend lets another repository read the objects of the target.
func (t *target) lend(to *git) error {
	name, from := filepath.Join(to.gitDir, "objects", "info", "alternates"), filepath.Join(t.common, "objects")
	if strings.Contains(from, "\n") {
		from = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(from) + `"`
	}
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(from+"\n"), 0o600))
}

// noObject is the name of no object.
func (t *target) noObject() string { return strings.Repeat("0", hex.EncodedLen(t.newHash().Size())) }

// newHash computes names of objects.
func (t *target) newHash() hash.Hash {
	if t.format == "sha256" {
		return sha256.New()
	}
	return sha1.New()
}

// blobName returns the name that git gives the content of a file, without storing it.
func (t *target) blobName(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	return objectName(t.newHash(), "blob", info.Size(), f)
}

// commitOf resolves a reference of the target to a commit; empty if it does not exist.
func (t *target) commitOf(ref string) (string, error) {
	out, err := t.refs.run(nil, "rev-parse", "--verify", "-q", ref)
	if status(err) == 1 {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return t.peel(strings.TrimSpace(string(out)))
}

// peel returns the commit that an object of the target is or, as an annotated tag, names.
func (t *target) peel(object string) (string, error) {
	if object == "" {
		return "", nil
	}
	out, err := t.own.run(nil, "rev-parse", "--verify", object+"^{commit}")
	return strings.TrimSpace(string(out)), err
}

// copyObjects gives the target the objects of a commit that it does not have with some others.
func (t *target) copyObjects(commit string, others ...string) error {
	var revs strings.Builder
	fmt.Fprintln(&revs, commit)
	for _, one := range others {
		if one != "" {
			fmt.Fprintln(&revs, "^"+one)
		}
	}
	pack := filepath.Join(t.own.dir, "new.pack")
	file, err := os.OpenFile(pack, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // read again below
	if err := t.own.pipe(strings.NewReader(revs.String()), file, "pack-objects", "-q", "--revs", "--stdout"); err != nil {
		return err
	}
	if _, err := file.Seek(0, 0); err != nil {
		return err
	}
	to := *t.own
	to.env = append(slices.Clone(to.env), "GIT_OBJECT_DIRECTORY="+filepath.Join(t.common, "objects"))
	_, err = to.asUser().run(file, "index-pack", "--stdin")
	return err
}

// move makes a reference of the target name a commit, if it names what it did.
func (t *target) move(ref, was, commit string) error {
	_, err := t.refs.run(nil, "update-ref", "-m", "agbox apply", ref, commit, cmp.Or(was, t.noObject()))
	if failed := new(gitError); errors.As(err, &failed) {
		now, unknown := t.commitOf(ref)
		if unknown == nil && now != was || strings.Contains(failed.said, ".lock': File exists") {
			return fmt.Errorf("another command moves the branch %s: run this one again (%w)", strings.TrimPrefix(ref, "refs/heads/"), err)
		}
	}
	return err
}
