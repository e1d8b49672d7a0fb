package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
)

// starter is a sandbox file to begin with. Prose stands behind "# ", what may be
// switched on behind "#" alone.
//
//go:embed starter.yaml
var starter []byte

func (a *app) initCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "init [flags]",
		Short: "Write an " + defaultSpecFile + " to begin with",
		Long: `Write an ` + defaultSpecFile + ` into this folder. It describes a sandbox of one image, and
shows in comments what else can be said.`,
		Args:              arguments(0, 0, "nothing"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			a.began = true
			return a.writeStarter(force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace a file that is there")
	return cmd
}

func (a *app) writeStarter(force bool) error {
	mode := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		mode = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	file, err := os.OpenFile(defaultSpecFile, mode, 0o644)
	if errors.Is(err, fs.ErrExist) {
		a.say("There is an %s in this folder already: --force replaces it.", defaultSpecFile)
		return exitStatus(codeConflict)
	}
	if err == nil {
		_, err = file.Write(starter)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		a.say("The file %s cannot be written: %v.", defaultSpecFile, err)
		return exitStatus(codeFailure)
	}
	a.say("Wrote %s: `agbox config validate` checks it, `agbox create` makes the sandbox.", defaultSpecFile)
	return nil
}

// rawJSON is text that is JSON already.
func rawJSON(text []byte) json.RawMessage { return text }
