package server

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
)

func TestEmptyRequestsOfAllMethodsAreRefusedInWords(t *testing.T) {
	s := bare(t)
	refused := 0
	for _, file := range []string{"agbox/v1/service.proto", "agbox/v1/files.proto"} {
		d, err := agboxv1.Files.FindFileByPath(file)
		if err != nil {
			t.Fatal(err)
		}
		for i := range d.Services().Len() {
			methods := d.Services().Get(i).Methods()
			for j := range methods.Len() {
				kind, err := agboxv1.Types.FindMessageByName(methods.Get(j).Input().FullName())
				if err != nil {
					t.Fatal(err)
				}
				err = s.check(kind.New().Interface())
				if err == nil {
					continue
				}
				refused++
				text := err.Error()
				if !strings.HasPrefix(text, "Give ") || strings.Contains(text, "must") || strings.Contains(text, "a value") || !strings.HasSuffix(text, ".") {
					t.Errorf("%s without anything: %q", methods.Get(j).Name(), text)
				}
			}
		}
	}
	if refused < 20 {
		t.Errorf("only %d methods refuse an empty request", refused)
	}
}

func TestWhatIsMissingAndWhatIsWrongAreToldTogether(t *testing.T) {
	s := bare(t)
	for want, req := range map[string]proto.Message{
		"Give the id of a sandbox. Give a command.":             &agboxv1.CreateExecRequest{},
		"Give the id of a sandbox or its name, not both.":       &agboxv1.CreateExecRequest{SandboxId: "a", SandboxName: "b", Command: []string{"x"}},
		"Give a command. cwd: \"tmp\" is not an absolute path.": &agboxv1.CreateExecRequest{SandboxId: "a", Cwd: "tmp"},
		"Give options.tags[1] a value.":                         &agboxv1.BuildImageRequest{Part: &agboxv1.BuildImageRequest_Options{Options: &agboxv1.BuildOptions{Tags: []string{"a", ""}}}},
	} {
		if err := s.check(req); !errors.As(err, new(*fault.Error)) || err.Error() != want {
			t.Errorf("%v: %v, want %q", req, err, want)
		}
	}
}
