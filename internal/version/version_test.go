package version

import (
	"runtime/debug"
	"testing"
)

func TestTheVersionIsThatOfTheModuleOrTheCommit(t *testing.T) {
	commit := []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "0123456789abcdef"}}
	dirty := append(commit[:2:2], debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	for _, tc := range []struct {
		module   string
		settings []debug.BuildSetting
		want     string
	}{
		{"v1.2.3", commit, "v1.2.3"},
		{"v0.0.0-20261123021538-76488bf0b636", nil, "v0.0.0-20261123021538-76488bf0b636"},
		{"(devel)", commit, "0123456"},
		{"", dirty, "0123456-dirty"},
		{"(devel)", nil, ""},
	} {
		if got := built(&debug.BuildInfo{Main: debug.Module{Version: tc.module}, Settings: tc.settings}); got != tc.want {
			t.Errorf("of module version %q and %v: %q, want %q", tc.module, tc.settings, got, tc.want)
		}
	}
	if Version == "" {
		t.Error("this program has no version")
	}
}
