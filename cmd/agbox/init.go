package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// starter is the file that init writes. Its comments begin with "# ", its disabled
// fields with "#" alone.
//
//go:embed starter.yaml
var starter []byte

func (a *app) initCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "init [flags]",
		Short: "Write a starter " + defaultSpecFile,
		Long: `Write an ` + defaultSpecFile + ` into this folder. It describes a sandbox with an image
and shows the other fields in comments.`,
		Args:              arguments(0, 0, "nothing"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			a.began = true
			return a.writeStarter(force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing file")
	return cmd
}

func (a *app) writeStarter(force bool) error {
	if force {
		// What stands there may be a link, or another name of a file elsewhere.
		if err := unix.Unlink(defaultSpecFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.say("Cannot replace %s: %v.", defaultSpecFile, err)
			return exitStatus(codeFailure)
		}
	}
	file, err := os.OpenFile(defaultSpecFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		a.say("This folder already has an %s. Use --force to replace it.", defaultSpecFile)
		return exitStatus(codeConflict)
	}
	if err == nil {
		_, err = file.Write(starter)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		a.say("Cannot write %s: %v.", defaultSpecFile, err)
		return exitStatus(codeFailure)
	}
	a.say("Wrote %s. `agbox config validate` checks it; `agbox up` creates the sandbox of this folder.", defaultSpecFile)
	return nil
}

// rawJSON is text that is JSON already.
func rawJSON(text []byte) json.RawMessage { return text }
