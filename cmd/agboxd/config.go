package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// newScratch is a command that is never run; it only holds flags.
func newScratch() *cobra.Command { return &cobra.Command{Use: "scratch"} }

// known are the names of all settings. The file may set all of them, even if the
// command has flags for only some.
func (s *settings) known() []string { return addSettings(newScratch()).names }

// configCommand shows the settings that a daemon would run with.
func configCommand(usage *bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the settings that \"agboxd run\" would use with these flags",
		Long: `Show, as a configuration file, the settings that "agboxd run" would use with these
flags, and where each comes from. The configuration file is agboxd.yaml in the
configuration folder of the install; the first line shows its path. It can set
everything that the flags set, under the same names. Flags override the file.`,
		Args: cobra.NoArgs,
	}
	s := addSettings(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		cfg, err := s.load()
		if err != nil {
			return err
		}
		*usage = false
		return s.print(os.Stdout, cfg.Paths.ConfigFile())
	}
	return cmd
}

// print writes all settings in the format of the configuration file.
func (s *settings) print(w io.Writer, file string) error {
	var b strings.Builder
	state := ""
	if len(s.from) == 0 {
		state = " (missing or empty)"
	}
	fmt.Fprintf(&b, "# %s%s\n", file, state)
	for _, name := range s.names {
		flag := s.cmd.Flags().Lookup(name)
		source := "default"
		switch {
		case flag.Changed:
			source = "flag"
		case s.from[name]:
			source = "file"
		case name == "engine":
			source = s.cfg.EngineFrom
		}
		text := flag.Value.String()
		if text == "" { // the engine or the adapter chooses; there is no value to print
			fmt.Fprintf(&b, "# %s: %s\n", name, source)
			continue
		}
		value, err := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Value: text})
		if list, ok := flag.Value.(rangesValue); ok {
			value, err = yaml.Marshal(list.list())
			text = "\n" + strings.TrimRight(string(value), "\n")
		} else {
			text = " " + strings.TrimRight(string(value), "\n")
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s:%s # %s\n", name, text, source)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
