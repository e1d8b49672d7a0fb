package supervisor

import (
	"os"
	"regexp"
	"testing"

	"github.com/agbox/agbox/runtime/supervisor/files"
)

func TestEveryCallOfTheProtocolIsAnswered(t *testing.T) {
	methods := newInside(t).methods(files.New(t.Context(), nil))
	for _, file := range []string{"agent", "files", "supervisor"} {
		text, err := os.ReadFile("../../proto/guest/v1/" + file + ".proto")
		if err != nil {
			t.Fatal(err)
		}
		service := ""
		for _, line := range regexp.MustCompile(`(?m)^(service|  rpc) (\w+)`).FindAllStringSubmatch(string(text), -1) {
			if line[1] == "service" {
				service = "guest.v1." + line[2]
				continue
			}
			name := service + "/" + line[2]
			if methods[name] == nil {
				t.Errorf("nothing answers %s", name)
			}
			delete(methods, name)
		}
	}
	for name := range methods {
		t.Errorf("there is no call %s", name)
	}
}
