// Package version has the version of this build of agbox.
package version

import (
	"cmp"
	"runtime/debug"
)

// Version is set by the linker. Otherwise it is the version of the module, as for a program
// that "go install" made, or the commit, or "dev".
var Version string

func init() {
	if Version != "" {
		return
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		Version = built(info)
	}
	Version = cmp.Or(Version, "dev")
}

// built returns the version that the Go command recorded in a program, or "".
func built(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(len(s.Value), 7)]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + dirty
}
