package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) buildCommand() *cobra.Command {
	var o upOptions
	var quiet bool
	cmd := &cobra.Command{
		Use:   "build [FILE] [flags]",
		Short: "Build the images of the sandbox of this folder",
		Long: `Build the images that the file of this folder builds, with features of development
containers, and print the id of each. No sandbox is made. The file is found as by
"agbox up" unless FILE names it, and the other flags are as there. An image that exists
is not built again; --pull always builds it anyway, on newer base images.
"agbox image build" builds an image from a Dockerfile alone.`,
		Example: `  agbox build && agbox up
  agbox build compose.yaml --profile tools`,
		Args: arguments(0, 1, "one FILE"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) > 0 {
				if o.file != "" {
					return usagef("Two files are given: omit -f or %s.", args[0])
				}
				o.file = args[0]
			}
			return o.buildImages(ctx, a, c, quiet)
		}),
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the ids")
	return cmd
}

// buildImages builds the images that the file and the flags describe.
func (o *upOptions) buildImages(ctx context.Context, a *app, c *client.Client, quiet bool) error {
	if err := o.find(a); err != nil {
		return err
	}
	input, err := o.request(ctx, a, c, nil, nil)
	if err != nil {
		return err
	}
	if err := c.Connect(ctx); err != nil {
		return err
	}
	if err := o.agreed(ctx, a, c, input); err != nil {
		return err
	}
	a.goesOn.is("The build ends, unless a sandbox or another command waits for it too; the engine keeps the steps that are done.")
	made := 0
	var failed error
	err = c.BuildSandboxImages(ctx, input.Request, func(m *agboxv1.BuildSandboxImagesResponse) {
		of := printable(cmp.Or(m.GetService(), o.composePrimary, "primary"))
		switch {
		case m.GetImageId() != "":
			made++
			if _, err := fmt.Fprintf(a.stdout, "%s %s\n", of, m.GetImageId()); err != nil {
				failed = err
			}
		case !quiet:
			a.printBuild(of + ": " + m.GetOutput() + "\n")
		}
	})
	if err == nil && failed == nil && made == 0 {
		a.say("%s builds no image.", filepath.Base(cmp.Or(o.file, "The file")))
	}
	return cmp.Or(err, failed)
}
