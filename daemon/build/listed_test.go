package build

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agbox/agbox/runtime"
)

func TestListedImagesSayWhatUsesThem(t *testing.T) {
	image := func(id, parent string, used bool, names ...string) runtime.ListedImage {
		return runtime.ListedImage{ID: id, Parent: parent, Used: used, Names: names}
	}
	all := []runtime.ListedImage{
		image("debian", "", false, "debian:12"),
		image("base", "debian", false, Repository+":1"),
		image("step", "base", false),
		image("features", "step", true, Repository+":2"), // a container keeps its base too
		image("unused", "debian", false, Repository+":3"),
		image("preset", "debian", false, PresetPrefix+"claude:1"),
		image("theirs", "preset", false, "ann/agent:1"),
		image("named", "debian", false, Repository+":4", "ann/x:1"),
		image("dangling", "debian", false),
		image("old", "debian", true, Repository+":5"),
		image("oldbase", "", false, Repository+"er:1"),
	}
	var got []string
	for _, i := range List(all) {
		got = append(got, fmt.Sprintf("%s built=%v needed=%v", i.ID, i.Built, i.Needed))
	}
	want := `debian built=false needed=true
base built=true needed=true
features built=true needed=true
unused built=true needed=false
preset built=true needed=true
theirs built=false needed=false
named built=false needed=false
dangling built=false needed=false
old built=true needed=true
oldbase built=false needed=false`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}
