package build

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec/feature"
)

// featuresDir is where a build finds the folders of features, and optionsName a file with
// the options of one beside its own. A feature's own file of this name is replaced.
const (
	featuresDir = "/tmp/.agbox-features"
	optionsName = ".agbox-options"
)

// featuresDockerfile installs features as root, and keeps what the image says about its
// main command.
func featuresDockerfile(base runtime.Image, features []*agboxv1.FeatureSpec) string {
	user, _, _ := strings.Cut(cmp.Or(base.User, "root"), ":")
	var d strings.Builder
	fmt.Fprintf(&d, "FROM %s\nUSER root\n", base.ID)
	entrypoint := base.Entrypoint
	for i, f := range features {
		for _, name := range slices.Sorted(maps.Keys(f.GetEnvs())) {
			fmt.Fprintf(&d, "ENV %s=%s\n", name, dockerfileText(f.GetEnvs()[name]))
		}
		dir := path.Join(featuresDir, strconv.Itoa(i))
		fmt.Fprintf(&d, "COPY %d %s/\n", i, dir)
		fmt.Fprintf(&d, "RUN cd %s && set -a && _CONTAINER_USER=%s && . ./%s && %s && set +a && chmod +x ./%s && ./%[5]s && rm -rf %s\n",
			dir, shellQuoted(user), optionsName, homes, feature.Script, featuresDir)
	}
	for _, f := range slices.Backward(features) {
		if f.GetEntrypoint() != "" {
			entrypoint = append([]string{f.GetEntrypoint()}, entrypoint...)
		}
	}
	if len(entrypoint) > len(base.Entrypoint) { // ENTRYPOINT clears CMD
		fmt.Fprintf(&d, "ENTRYPOINT %s\nCMD %s\n", jsonText(entrypoint), jsonText(base.Cmd))
	}
	fmt.Fprintf(&d, "USER %s\n", cmp.Or(base.User, "root"))
	return d.String()
}

// homes sets the variables with homes that install.sh expects. getent is not in every
// image.
const homes = `: "${_REMOTE_USER:=$_CONTAINER_USER}" && ` +
	`agbox_home() { grep -E "^$1:|^[^:]*:[^:]*:$1:" /etc/passwd | cut -d: -f6 | head -n 1; } && ` +
	`_CONTAINER_USER_HOME="$(agbox_home "$_CONTAINER_USER")" && _REMOTE_USER_HOME="$(agbox_home "$_REMOTE_USER")"`

// options is the file with the options of a feature, for a shell.
func options(f *agboxv1.FeatureSpec) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.GetOptions())) {
		fmt.Fprintf(&text, "%s=%s\n", name, shellQuoted(f.GetOptions()[name]))
	}
	return text.String()
}

func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// dockerfileText quotes a text of a Dockerfile in which variables are replaced.
func dockerfileText(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

func jsonText(words []string) string {
	if words == nil {
		words = []string{}
	}
	text, _ := json.Marshal(words) // strings always have one
	return string(text)
}
