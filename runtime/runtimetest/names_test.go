package runtimetest

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/runtime"
)

func TestNamesAreThoseOfTheStateContract(t *testing.T) {
	long := strings.Repeat("Ab_c.-d", 28) + "Ab_c"
	for got, want := range map[string]string{
		runtime.NetworkName("my-box"):        "agbox-net-my-box",
		runtime.PrimaryName("my-box"):        "agbox-primary-my-box",
		runtime.ServiceName("my-box", "db1"): "agbox-svc-my-box-db1",
		// Docker takes these as they are.
		runtime.NetworkName("My_box.1"):          "agbox-net-My_box.1",
		runtime.PrimaryName("My_box.1"):          "agbox-primary-My_box.1",
		runtime.ServiceName("My_box.1", "s_1.x"): "agbox-svc-My_box.1-s_1.x",
		runtime.PrimaryName(long):                "agbox-primary-" + long,
	} {
		if got != want {
			t.Errorf("the name is %q, want %q", got, want)
		}
	}
	// What an earlier daemon made is known again.
	for _, name := range []string{"agbox-primary-My_box", "agbox-primary-my-box-9cc6f2ab"} {
		if !runtime.IsPrimaryName(name, "My_box") || runtime.IsPrimaryName(name, "my-box") {
			t.Errorf("%s is not the primary of My_box only", name)
		}
	}
	if former := "agbox-svc-my-box-9cc6f2ab-s-1-77ceec1a"; !runtime.IsServiceName(former, "My_box", "s_1") {
		t.Errorf("%s is no service of My_box", former)
	}
	if runtime.PrimaryName("My_box") == runtime.PrimaryName("my-box") {
		t.Error("two sandboxes have one primary name")
	}
}
