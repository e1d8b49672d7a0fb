package doctor

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/runtime"
)

func TestTheMainCommandOfAContainerIsFoundAgain(t *testing.T) {
	for _, c := range []struct{ runs, imageEntrypoint, imageCommand, entrypoint, command string }{
		{"/entry serve", "/entry", "serve", "", ""},
		{"/entry mine", "/entry", "serve", "", "mine"},
		{"mine", "", "serve", "", "mine"},
		{"mine too", "/entry", "serve", "mine too", ""},
		{"/entry", "/entry", "serve", "/entry", ""},
		{"", "", "sh", "", ""},
	} {
		spec := new(agboxv1.CreateSpec)
		rebuildCommand(spec, strings.Fields(c.runs), runtime.Image{Entrypoint: strings.Fields(c.imageEntrypoint), Cmd: strings.Fields(c.imageCommand)})
		if got := strings.Join(spec.GetEntrypoint(), " ") + "|" + strings.Join(spec.GetCommand(), " "); got != c.entrypoint+"|"+c.command {
			t.Errorf("%+v: the spec has %q", c, got)
		}
	}
}
