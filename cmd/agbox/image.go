package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "List, pull, build and remove images",
	}
	onlyCommands(cmd, a.imageLsCommand(), a.imagePullCommand(), a.imageBuildCommand(), a.imageRmCommand(), a.imagePruneCommand())
	return cmd
}

func (a *app) imageLsCommand() *cobra.Command {
	o := listing[*agboxv1.Image]{keys: imageFilters}
	var all bool
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the images of the engine",
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error {
			images, err := c.ListImages(ctx)
			if err != nil {
				return err
			}
			if images, err = o.filtered(images); err != nil {
				return err
			}
			return o.print(a, images, imageColumns, func(images []*agboxv1.Image) [][]view.Cell {
				return a.imageRows(images, all || o.filtersBy("dangling"), o.noTrunc)
			})
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "list images without a name too")
	o.addFlags(cmd)
	return cmd
}

// imageColumns are the columns of imageRows.
var imageColumns = []view.Column{{Title: "NAME", Min: 12}, {Title: "ID"}, {Title: "SIZE", Right: true, Omit: 2}, {Title: "CREATED", Omit: 1}}

// imageRows show images, one row for each name; all means also those without a name.
func (a *app) imageRows(images []*agboxv1.Image, all, whole bool) [][]view.Cell {
	var rows [][]view.Cell
	for _, i := range images {
		id := i.GetId()
		if !whole {
			id = shortImage(id)
		}
		names := i.GetNames()
		if len(names) == 0 && all {
			names = []string{"-"}
		}
		for _, name := range names {
			rows = append(rows, cells(name, id, byteCount(int64(i.GetSizeBytes())), a.sinceCell(i.GetCreatedAt())))
		}
	}
	return rows
}

// shortImage shortens an image's id; the engine accepts the short form.
func shortImage(id string) string {
	id = strings.TrimPrefix(printable(id), "sha256:")
	return id[:min(len(id), 12)]
}

func (a *app) imagePullCommand() *cobra.Command {
	var platform string
	cmd := &cobra.Command{
		Use:   "pull IMAGE [flags]",
		Short: "Pull an image",
		Long: `Pull an image and print its id. Credentials come from the Docker configuration and
credential helpers of the user that the daemon runs as: log in with 'docker login'.`,
		Args:              arguments(1, 1, "one IMAGE"),
		ValidArgsFunction: a.completeImages(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			a.goesOn.is("The pull ends, unless a sandbox or another command waits for it too; the engine keeps the layers that it has.")
			line := shownLine{app: a}
			pulled, err := c.PullImage(ctx, &agboxv1.PullImageRequest{Image: args[0], Platform: platform}, func(p *agboxv1.PullImageResponse) {
				if width := a.width(); width > 0 {
					line.show(fmt.Sprintf("%s %s of %s, %d of %d layers", bar(p.GetBytesDone(), p.GetBytesTotal()),
						byteCount(int64(p.GetBytesDone())), byteCount(int64(p.GetBytesTotal())), p.GetLayersDone(), p.GetLayersTotal()), width)
				}
			})
			line.clear()
			if err == nil {
				_, err = fmt.Fprintln(a.stdout, pulled.GetId())
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&platform, "platform", "", "`PLATFORM` of the image, for example linux/arm64")
	return cmd
}

type buildOptions struct {
	tags     []string
	file     string
	args     []string
	target   string
	platform string
	noCache  bool
	pull     bool
	quiet    bool
}

func (a *app) imageBuildCommand() *cobra.Command {
	var o buildOptions
	cmd := &cobra.Command{
		Use:   "build [FOLDER] [flags]",
		Short: "Build an image from a folder with a Dockerfile",
		Long: `Build an image from FOLDER, by default the current one, and print its id. The output
of the build goes to stderr. Files that FOLDER's .dockerignore names are excluded.`,
		Example: `  agbox image build -t my/agent:1
  agbox image build -t my/agent:1 -f docker/Dockerfile --build-arg VERSION=3 .`,
		Args: arguments(0, 1, "one FOLDER"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			return o.run(ctx, a, c, dir)
		}),
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.tags, "tag", "t", nil, "`NAME` of the image, optionally with a tag (repeatable)")
	f.StringVarP(&o.file, "file", "f", "", "`PATH` of the Dockerfile within FOLDER")
	f.StringArrayVar(&o.args, "build-arg", nil, "set `KEY=VALUE`; KEY alone takes the value from this environment (repeatable)")
	f.StringVar(&o.target, "target", "", "stop at the stage `NAME`")
	f.StringVar(&o.platform, "platform", "", "`PLATFORM` of the image, for example linux/arm64")
	f.BoolVar(&o.noCache, "no-cache", false, "do not use the build cache")
	f.BoolVar(&o.pull, "pull", false, "pull newer base images")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only the id")
	return cmd
}

func (o *buildOptions) run(ctx context.Context, a *app, c *client.Client, dir string) error {
	args, err := a.environment("build-arg", o.args)
	if err != nil {
		return err
	}
	file := filepath.ToSlash(filepath.Clean(o.file))
	if o.file == "" {
		file = "Dockerfile"
	} else if !filepath.IsLocal(o.file) {
		return usagef("The Dockerfile %s is outside the folder %s: give its path within the folder.", o.file, dir)
	}
	options := &agboxv1.BuildOptions{
		Tags: o.tags, Dockerfile: file, BuildArgs: args, Target: o.target, Platform: o.platform, NoCache: o.noCache, Pull: o.pull,
	}
	a.goesOn.is("The build ends; the engine keeps the steps that are done.")
	id, err := c.BuildImage(ctx, options, dir, func(text string) {
		if !o.quiet {
			a.printBuild(text)
		}
	})
	if err == nil {
		_, err = fmt.Fprintln(a.stdout, id)
	}
	return err
}

// printBuild prints output of a build. It keeps line breaks and escapes other control
// characters.
func (a *app) printBuild(text string) {
	for line := range strings.Lines(text) {
		body, ended := strings.CutSuffix(line, "\n")
		fmt.Fprint(a.stderr, printable(body))
		if ended {
			fmt.Fprintln(a.stderr)
		}
	}
}

func (a *app) imageRmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Remove images that no container uses",
		Long: `Remove names of images, and an image with its last name. An image that a container uses,
also a stopped one, stays, and so does each while a sandbox is being made.`,
		Args:              arguments(1, -1, "an IMAGE"),
		ValidArgsFunction: a.completeImages(-1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if err := a.imagesFree(ctx, c); err != nil {
				return err
			}
			return a.each(ctx, args, func(ref string) error {
				err := c.RemoveImage(ctx, ref, false)
				if err == nil {
					_, err = fmt.Fprintln(a.stdout, printable(ref))
				}
				return err
			})
		}),
	}
}

// imagesFree waits until sandboxes that are being removed do not use their images any more.
func (a *app) imagesFree(ctx context.Context, c *client.Client) error {
	left, err := untilRemoved(ctx, c)
	if len(left) > 0 {
		a.say("Not removed yet: %s. The images of that stay until it is.", strings.Join(left, ", "))
	}
	return err
}

func (a *app) imagePruneCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove the images that agbox has built and that nothing uses",
		Long: `Remove the images that agbox has built, for sandbox files with a build and for presets,
and that no container and no other image uses, also those of other daemons that use this
engine. On a terminal it lists them and asks;
elsewhere it needs -f. A sandbox that needs one later has it built again.`,
		RunE: a.with(func(ctx context.Context, c *client.Client, _ []string) error { return a.pruneImages(ctx, c, force) }),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}

func (a *app) pruneImages(ctx context.Context, c *client.Client, force bool) error {
	if err := a.imagesFree(ctx, c); err != nil {
		return err
	}
	list, err := c.ListImages(ctx)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(i *agboxv1.Image) bool { return !i.GetBuilt() || i.GetUsed() })
	switch {
	case len(list) == 0:
		a.say("No image that agbox has built is unused.")
		return nil
	case !force && a.terminal() == nil:
		return usagef("Images to remove: %d. Without a terminal agbox image prune needs -f.", len(list))
	case !force:
		fmt.Fprint(a.stderr, view.Render(imageColumns, a.imageRows(list, false, false), view.Options{Width: a.width()}))
		yes, err := a.confirm(ctx, "Remove all of these?")
		if err != nil || !yes {
			return err
		}
	}
	var names []string
	for _, i := range list {
		names = append(names, i.GetNames()...)
	}
	return a.each(ctx, names, func(name string) error {
		err := c.RemoveImage(ctx, name, true) // it may be used meanwhile
		if errors.Is(err, client.ErrNotFound) {
			return nil
		}
		if err == nil {
			_, err = fmt.Fprintln(a.stdout, printable(name))
		}
		return err
	})
}

// imageFilters are the keys of agbox image ls. A reference may have * and ?, as in docker.
var imageFilters = filterKeys[*agboxv1.Image]{
	"id": func(i *agboxv1.Image, v string) bool {
		return v != "" && strings.HasPrefix(strings.TrimPrefix(i.GetId(), "sha256:"), strings.TrimPrefix(v, "sha256:"))
	},
	"dangling": func(i *agboxv1.Image, v string) bool { return strconv.FormatBool(len(i.GetNames()) == 0) == v },
	"reference": func(i *agboxv1.Image, v string) bool {
		return slices.ContainsFunc(i.GetNames(), func(name string) bool {
			bare, _, _ := strings.Cut(name, ":")
			whole, _ := path.Match(v, name)
			short, _ := path.Match(v, bare)
			return whole || short || isImage(name, v)
		})
	},
}
