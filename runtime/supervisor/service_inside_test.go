package supervisor

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/files"
)

func TestEveryCallOfTheProtocolIsAnswered(t *testing.T) {
	methods := newInside(t).methods(files.New(t.Context(), nil))
	for _, file := range []protoreflect.FileDescriptor{guestv1.File_guest_v1_agent_proto, guestv1.File_guest_v1_files_proto, guestv1.File_guest_v1_supervisor_proto} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				name := string(service.FullName()) + "/" + string(service.Methods().Get(j).Name())
				if methods[name] == nil {
					t.Errorf("nothing answers %s", name)
				}
				delete(methods, name)
			}
		}
	}
	for name := range methods {
		t.Errorf("there is no call %s", name)
	}
}
