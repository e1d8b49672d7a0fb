package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/filesystem"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/presets"
)

// presetImage is an image of a preset: the base that it is made from, and the user id of
// the agent in it.
type presetImage struct {
	preset *presets.Preset
	base   string
	uid    int
}

// presetBase is the base image: the flag, the variable, or the default.
func (a *app) presetBase(flag string) string {
	env, _ := a.lookupEnv(presets.BaseEnv)
	return cmp.Or(flag, env, presets.DefaultBase)
}

// callerUID is the user id of agents: the caller's, so that they can use what only the
// caller may, or DefaultUID for root.
func callerUID() int {
	if uid := os.Getuid(); uid > 0 {
		return uid
	}
	return presets.DefaultUID
}

func (p presetImage) name() string { return p.preset.Image(p.base, p.uid) }

// exists reports whether the engine has the image.
func (p presetImage) exists(ctx context.Context, c *client.Client) (bool, error) {
	names, err := imageNames(ctx, c)
	return names[p.name()], err
}

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
	if there, err := p.exists(ctx, c); there || err != nil {
		return err
	}
	a.say("Building the image %s, once: Debian packages and %s %s of npm, on %s.", p.name(), p.preset.Package, p.preset.Version, printable(p.base))
	show := &buildProgress{app: a}
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
	if err := os.WriteFile(filepath.Join(dir.Path, "Dockerfile"), presets.Dockerfile, 0o600); err != nil {
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
		return fmt.Errorf("The base image %s cannot be pulled: %w Name a Debian image that this machine has or can pull, with --base IMAGE or the variable %s.", p.base, err, presets.BaseEnv) //nolint:revive,staticcheck // sentences for people
	}
	return nil
}

// buildProgress shows the output of a build: the newest step on one line of a terminal, or
// each step on a line of its own elsewhere. It keeps the last lines.
type buildProgress struct {
	app     *app
	rest    string
	last    []string
	painted bool
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
		b.show(line)
	}
}

func (b *buildProgress) show(line string) {
	if width := b.app.width(); width > 0 {
		fmt.Fprintf(b.app.stderr, "\r\x1b[K%s", cut("building: "+line, width-1))
		b.painted = true
	} else if strings.HasPrefix(line, "Step ") {
		b.app.say("%s", line)
	}
}

func (b *buildProgress) clear() {
	if b.painted {
		fmt.Fprint(b.app.stderr, "\r\x1b[K")
	}
}
