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
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The labels by which the sandboxes of a folder are found. A sandbox file cannot set them.
const (
	// folderLabel is the folder of a sandbox, a path without symbolic links.
	folderLabel = "agbox.folder"
	// folderIDLabel says which folder that was, whatever it is called now.
	folderIDLabel = "agbox.folder-id"
	// flagsLabel are the fields of the spec that flags of agbox up have set.
	flagsLabel = "agbox.up-flags"
	// presetLabel is the name of the preset that made the sandbox.
	presetLabel = "agbox.preset"
	// settingsLabel is settingsOff if the preset's agent leaves out the settings of the folder.
	settingsLabel = "agbox.preset-settings"
	settingsOff   = "off"
)

// thisFolder returns the current folder, without symbolic links.
func thisFolder() (string, error) {
	folder, err := os.Getwd()
	return resolvedLinks(folder), err
}

// belongTo labels a sandbox as that of its workspace's folder, else of the folder of its
// sandbox file.
func belongTo(in *agboxv1.CreateSandboxRequest) {
	s := in.GetCreateSpec()
	folder := s.GetWorkspace().GetSource()
	if folder == "" && hasFiles(in) {
		folder = in.GetConfigDir()
	}
	if folder == "" || s.GetLabels()[folderLabel] != "" {
		return
	}
	if home, err := os.UserHomeDir(); err == nil && (folder == "~" || strings.HasPrefix(folder, "~/")) {
		folder = home + folder[1:]
	}
	if s.Labels == nil {
		s.Labels = make(map[string]string)
	}
	folder = resolvedLinks(folder)
	s.Labels[folderLabel], s.Labels[folderIDLabel] = folder, folderID(folder)
}

// folderID is the inode of a folder and the time at which that was made; "" if it is not known.
func folderID(folder string) string {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, folder, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return ""
	}
	return fmt.Sprintf("%d-%d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec)
}

// place is where the folder of a sandbox is: "" if it has none, and gone if that is no longer there.
type place struct {
	folder string
	gone   bool
}

// placeOf asks the file system for the place of a sandbox. It follows a link in the old place of a
// folder that was moved, and not one to another folder: who may write the folder above, such as a
// sandbox, can put one there.
func placeOf(h *agboxv1.SandboxHandle) place {
	at := place{folder: h.GetLabels()[folderLabel]}
	if at.folder == "" {
		return at
	}
	if _, err := os.Lstat(at.folder); errors.Is(err, fs.ErrNotExist) {
		at.gone = true
	}
	if to := resolvedLinks(at.folder); to != at.folder && folderID(to) != "" && folderID(to) == h.GetLabels()[folderIDLabel] {
		at.folder = to
	}
	return at
}

// placesOf returns what placeOf says of each sandbox within a second altogether: a mount whose
// server is gone never answers. The others are taken to be where their labels say.
func placesOf(list []*agboxv1.SandboxHandle, placeOf func(*agboxv1.SandboxHandle) place) []place {
	all, answers := make([]place, len(list)), make(chan place, len(list))
	for i, h := range list {
		all[i].folder = h.GetLabels()[folderLabel]
	}
	go func() { // ends when the file system answers, or with the program
		for _, h := range list {
			answers <- placeOf(h)
		}
	}()
	limit := time.After(time.Second)
	for i := range all {
		select {
		case all[i] = <-answers:
		case <-limit:
			return all
		}
	}
	return all
}

// near returns the sandboxes that can be those of a folder, which has no symbolic links, or of one
// above it, by their labels. The file system is asked about no folder of another sandbox.
func near(list []*agboxv1.SandboxHandle, here string) []*agboxv1.SandboxHandle {
	paths, ids := make(map[string]bool), make(map[string]bool)
	for folder := here; !paths[folder]; folder = filepath.Dir(folder) {
		paths[folder], ids[folderID(folder)] = true, true
	}
	delete(ids, "")
	var some []*agboxv1.SandboxHandle
	for _, h := range list {
		if paths[h.GetLabels()[folderLabel]] || ids[h.GetLabels()[folderIDLabel]] {
			some = append(some, h)
		}
	}
	return some
}

// byFolder sorts sandboxes, without those that are being removed, by their folders. It also
// returns which of the folders are gone.
func byFolder(list []*agboxv1.SandboxHandle) (of map[string][]*agboxv1.SandboxHandle, gone map[string]bool) {
	of, gone = make(map[string][]*agboxv1.SandboxHandle), make(map[string]bool)
	for i, at := range placesOf(list, placeOf) {
		if at.folder != "" && list[i].GetState() != agboxv1.SandboxState_SANDBOX_STATE_DELETING {
			of[at.folder], gone[at.folder] = append(of[at.folder], list[i]), at.gone
		}
	}
	return of, gone
}

// sandboxHere returns the one sandbox of this folder, or of the nearest folder above that has
// any. It says to a person which it is if the command changes something, or if it is that of
// a folder above.
func (a *app) sandboxHere(ctx context.Context, c *client.Client, to purpose) (string, error) {
	here, err := thisFolder()
	if err != nil {
		return "", err
	}
	everyone, err := c.ListSandboxes(ctx, client.ListOptions{})
	if err != nil {
		return "", err
	}
	all, _ := byFolder(near(everyone, here))
	home := a.host().Home
	for folder := here; ; folder = filepath.Dir(folder) {
		list := all[folder]
		switch shown := printable(tilde(folder, home)); {
		case len(list) == 1:
			name := nameOf(list[0])
			if a.width() > 0 && (to == changes || folder != here) {
				a.say("Using sandbox %s of %s.", name, shown)
			}
			return name, nil
		case len(list) > 1:
			return "", &client.Error{Code: codes.InvalidArgument, Reason: agboxv1.ErrorReason_SANDBOX_AMBIGUOUS.String(), Message: fmt.Sprintf(
				"%s has %d sandboxes: %s. Name the one that is meant.", shown, len(list), strings.Join(a.introduced(list), ", "))}
		case folder == filepath.Dir(folder):
			return "", &client.Error{Code: codes.NotFound, Reason: agboxv1.ErrorReason_SANDBOX_NOT_FOUND.String(), Message: fmt.Sprintf(
				"%s has no sandbox. Name one of `agbox ls`, or make one here with `agbox up` or `agbox claude`.%s", printable(tilde(here, home)), moved(everyone, here))}
		}
	}
}

// moved says which sandboxes are of folders that are gone: one of them may be this folder under
// its old name. It is "" if there are none.
func moved(everyone []*agboxv1.SandboxHandle, here string) string {
	all, gone := byFolder(everyone)
	var old, lost []string
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		if !gone[folder] {
			continue
		}
		old = append(old, folder)
		for _, h := range all[folder] {
			lost = append(lost, nameOf(h)+" of "+printable(folder))
		}
	}
	link := "OLD"
	if len(old) == 1 {
		link = old[0]
	}
	if len(old) == 0 {
		return ""
	}
	return fmt.Sprintf(" There are sandboxes of folders that are gone: %s. If this is such a folder, which was moved, a link in its old place brings both together: `%s`.",
		listed(lost), printable(shellWords([]string{"ln", "-s", here, link})))
}

// introduced describes sandboxes, each by its name, state and age.
func (a *app) introduced(list []*agboxv1.SandboxHandle) []string {
	return collect(list, func(h *agboxv1.SandboxHandle) string {
		return fmt.Sprintf("%s (%s, made %s)", nameOf(h), sandboxState(h), a.since(h.GetCreatedAt()))
	})
}

// orHere returns the sandboxes that were named, else the sandbox of this folder.
func (a *app) orHere(ctx context.Context, c *client.Client, refs []string, to purpose) ([]string, error) {
	if len(refs) > 0 {
		return refs, nil
	}
	name, err := a.sandboxHere(ctx, c, to)
	return []string{name}, err
}

// named returns the sandboxes that were named. If a person named none, it is the sandbox of
// this folder. A script may have lost a name, so it must give one.
func (a *app) named(ctx context.Context, c *client.Client, verb string, refs []string) ([]string, error) {
	if len(refs) > 0 {
		return refs, nil
	}
	name, err := a.sandboxHere(ctx, c, changes)
	if err == nil && (a.terminal() == nil || a.width() == 0) {
		err = usagef("Without a terminal, agbox %s takes only what is named: give %s.", verb, name)
	}
	return []string{name}, err
}

// sandboxAndPaths splits arguments into a sandbox and paths. The sandbox is that of this
// folder if there are no arguments, if all follow "--", or, for a command that only reads, if
// the first is a path and no sandbox.
func (a *app) sandboxAndPaths(ctx context.Context, c *client.Client, args []string, dash int, to purpose) (sandbox string, paths []string, err error) {
	if len(args) > 0 && dash != 0 && (to != reads || !a.isPath(ctx, c, args[0])) {
		return args[0], args[1:], nil
	}
	sandbox, err = a.sandboxHere(ctx, c, to)
	return sandbox, args, err
}

// dashAt accepts any arguments and stores how many are before "--", negative without one.
func dashAt(dash *int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, _ []string) error {
		*dash = cmd.ArgsLenAtDash()
		return nil
	}
}

// isPath reports whether a text is a path and no sandbox.
func (a *app) isPath(ctx context.Context, c *client.Client, text string) bool {
	if _, err := os.Lstat(text); err != nil && !strings.Contains(text, "/") {
		return false
	}
	return !isSandbox(ctx, c, text)
}

// isSandbox reports whether a text is the whole id or the name of a sandbox. If that cannot be
// found out, it is taken for one.
func isSandbox(ctx context.Context, c *client.Client, text string) bool {
	out, err := c.Candidates(ctx, ofSandbox, text)
	if hasCode(err, codes.InvalidArgument) {
		return false // it can be no id and no name
	}
	return err != nil && !errors.Is(err, client.ErrNotFound) || slices.ContainsFunc(out.GetReferents(), whole)
}

var notInNames = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^a-z0-9_.-]+`) })

// slug makes the beginning of a sandbox's name of any text; "" if nothing of it can be one.
func slug(text string, longest int) string {
	text = strings.TrimLeft(notInNames().ReplaceAllString(strings.ToLower(text), "-"), "_.-")
	return text[:min(len(text), longest)]
}

// resolvedLinks resolves the symbolic links of a path that can be resolved.
func resolvedLinks(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return filepath.Clean(path)
}
