package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/filesystem"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// presetOptions run a coding agent in a sandbox of its own.
type presetOptions struct {
	runOptions
	preset      *codingAgent
	noWorkspace bool
	base        string
	with        []string
	ask         bool
	verbose     bool
	anew        bool
	// own is the preset's own image; nil if a flag, a file or the environment names one.
	own *presetImage
	// off means that the agent leaves out the settings of the folder.
	off bool
	// described is the sandbox as the sandbox file and the flags describe it; nil if the file
	// has problems.
	described *agboxv1.CreateSpec
}

// presetImage is an image of a preset: the base that it is made from, and the user id of
// the agent in it.
type presetImage struct {
	preset *codingAgent
	base   string
	uid    int
}

// presetBase is the base image: the flag, the variable, or the default.
func (a *app) presetBase(flag string) string {
	env, _ := a.lookupEnv(presetBaseVariable)
	return cmp.Or(flag, env, defaultPresetBase)
}

// callerUID is the user id of agents: the caller's, so that they can use what only the
// caller may, or DefaultUID for root.
func callerUID() int {
	if uid := os.Getuid(); uid > 0 {
		return uid
	}
	return defaultPresetUID
}

func (p presetImage) name() string { return p.preset.Image(p.base, p.uid) }

// imageNames are the names of the engine's images.
func imageNames(ctx context.Context, c *client.Client) (map[string]bool, error) {
	images, err := c.ListImages(ctx)
	names := make(map[string]bool)
	for _, i := range images {
		for _, name := range i.GetNames() {
			names[name] = true
		}
	}
	return names, err
}

// provide builds the image if the engine does not have it, and shows how far it is.
func (p presetImage) provide(ctx context.Context, a *app, c *client.Client) error {
	if names, err := imageNames(ctx, c); err != nil || names[p.name()] {
		return err
	}
	a.say("Building the image %s, once: Debian packages and %s %s of npm, on %s.", p.name(), p.preset.Package, p.preset.Version, printable(p.base))
	show := &buildProgress{shownLine: shownLine{app: a}}
	_, err := p.build(ctx, a, c, show.take)
	show.clear()
	if err != nil && len(show.last) > 0 {
		fmt.Fprintln(a.stderr, strings.Join(show.last, "\n"))
	}
	return err
}

// build builds the image and returns its id.
func (p presetImage) build(ctx context.Context, a *app, c *client.Client, output func(string)) (string, error) {
	if err := p.pullBase(ctx, a, c); err != nil {
		return "", err
	}
	dir, err := filesystem.NewTempDir("preset")
	if err != nil {
		return "", err
	}
	defer dir.Remove()
	if err := os.WriteFile(filepath.Join(dir.Path, "Dockerfile"), presetDockerfile, 0o600); err != nil {
		return "", err
	}
	return c.BuildImage(ctx, &agboxv1.BuildOptions{
		Tags: []string{p.name()}, Dockerfile: "Dockerfile", BuildArgs: p.preset.BuildArgs(p.base, p.uid),
	}, dir.Path, output)
}

// pullBase pulls the base image if it is missing. Its failure says what to do.
func (p presetImage) pullBase(ctx context.Context, a *app, c *client.Client) error {
	names, err := imageNames(ctx, c)
	if err != nil || names[p.base] || names[p.base+":latest"] {
		return err
	}
	a.say("Pulling the base image %s.", printable(p.base))
	if _, err := c.PullImage(ctx, &agboxv1.PullImageRequest{Image: p.base}, nil); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("The base image %s cannot be pulled: %w Name a Debian image that this machine has or can pull, with --base IMAGE or the variable %s.", p.base, err, presetBaseVariable) //nolint:revive,staticcheck // sentences for people
	}
	return nil
}

// buildProgress shows the output of a build: the newest step on one line of a terminal, or
// each step on a line of its own elsewhere. It keeps the last lines.
type buildProgress struct {
	shownLine
	rest string
	last []string
}

// buildTail is how many lines of a failed build are shown.
const buildTail = 30

func (b *buildProgress) take(text string) {
	lines := strings.Split(b.rest+text, "\n")
	b.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		// A program may repaint its line; show what stands there in the end.
		line = strings.TrimRight(line, "\r")
		line = printable(line[strings.LastIndex(line, "\r")+1:])
		if strings.TrimSpace(line) == "" {
			continue
		}
		b.last = append(b.last, line)
		b.last = b.last[max(0, len(b.last)-buildTail):]
		b.step(line)
	}
}

func (b *buildProgress) step(line string) {
	if width := b.app.width(); width > 0 {
		b.show("building: "+line, width)
	} else if strings.HasPrefix(line, "Step ") {
		b.app.say("%s", line)
	}
}

// chooseImage takes the image from the environment if neither flags nor files name one, and
// otherwise the preset's own.
func (o *presetOptions) chooseImage(a *app, extras []string) error {
	if o.image != "" || o.file != "" || len(o.devcontainers)+len(o.composes) > 0 {
		return nil
	}
	if _, err := os.Stat(defaultSpecFile); err == nil {
		return nil
	}
	if o.image, _ = a.lookupEnv(o.preset.ImageEnv); o.image != "" {
		return nil
	}
	uid, err := o.agentUser(extras)
	if err != nil {
		return err
	}
	if uid == 0 {
		uid = defaultPresetUID
		o.user = cmp.Or(o.user, "root")
	}
	o.own = &presetImage{preset: o.preset, base: a.presetBase(o.base), uid: uid}
	o.image = o.own.name()
	return nil
}

// agentUser returns the user id of the agent in the preset's own image: the owner of a
// mounted folder, else the caller, else DefaultUID. What belongs to root can only be used
// by root, so the agent is root if root mounts or hands over such things.
func (o *presetOptions) agentUser(extras []string) (int, error) {
	if os.Getuid() == 0 && (slices.Contains(extras, "gh") || slices.Contains(extras, "ssh-agent")) {
		return 0, nil
	}
	if o.mountWorkspace == "" {
		return callerUID(), nil
	}
	dir, _ := document.SplitWorkspace(o.mountWorkspace)
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return 0, usagef("The folder %s cannot be mounted: %v.", dir, err)
	}
	return int(st.Uid), nil
}

// complete adds the tools and this folder to the spec of the flags and files.
func (o *presetOptions) complete(ctx context.Context, a *app, c *client.Client, extras []string) error {
	o.quiet = true // create prints the same notes
	input, err := o.request(ctx, a, c, nil, nil)
	o.quiet = false
	if err != nil {
		return err
	}
	asked := input.Request
	spec := asked.GetCreateSpec()
	if hasFiles(asked) {
		if err := c.Connect(ctx); err != nil {
			return err
		}
		out, err := c.ResolveSpec(ctx, asked)
		if err == nil && out.GetCreateSpec() != nil {
			spec = out.GetCreateSpec() // create reports the problems
			o.described = spec
		}
	} else {
		o.described = spec
	}
	// The flag --tool claude brings in the login and the settings.
	if !slices.Contains(o.tools, o.preset.Name) {
		o.tools = append(o.tools, o.preset.Tool)
	}
	o.tools = append(o.tools, extras...)
	if spec.GetWorkspace().GetSource() == "" && !o.noWorkspace {
		here, err := filepath.Abs(".")
		if err != nil {
			return err
		}
		o.workspace = here
	}
	return nil
}

// addVariables hands over the preset's variables that are set here and that no flag sets,
// and returns their names.
func (o *presetOptions) addVariables(a *app) []string {
	var names []string
	given := func(name string) bool {
		return slices.ContainsFunc(slices.Concat(o.vars.plain, o.vars.secret), func(pair string) bool {
			key, _, _ := strings.Cut(pair, "=")
			return key == name
		})
	}
	pass := func(list *[]string, wanted []string) {
		for _, name := range wanted {
			if value, _ := a.lookupEnv(name); value != "" && !given(name) {
				*list = append(*list, name)
				names = append(names, name)
			}
		}
	}
	pass(&o.vars.secret, o.preset.Keys)
	pass(&o.vars.plain, o.preset.Settings)
	for _, name := range slices.Sorted(maps.Keys(o.preset.Env)) {
		if !given(name) {
			o.vars.plain = append(o.vars.plain, name+"="+o.preset.Env[name])
		}
	}
	return names
}

// folder is the folder that becomes the workspace; "" if there is none.
func (o *presetOptions) folder() string {
	folder, _ := document.SplitWorkspace(cmp.Or(o.mountWorkspace, o.workspace))
	if folder == "" {
		folder = o.described.GetWorkspace().GetSource()
	}
	if folder == "" {
		return ""
	}
	return here(folder)
}
