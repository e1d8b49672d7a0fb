package runtimetest

import (
	"testing"

	"github.com/agbox/agbox/runtime"
)

func TestNamesAreThoseOfTheStateContract(t *testing.T) {
	for got, want := range map[string]string{
		runtime.NetworkName("my-box"):        "agbox-net-my-box",
		runtime.PrimaryName("my-box"):        "agbox-primary-my-box",
		runtime.ServiceName("my-box", "db1"): "agbox-svc-my-box-db1",
	} {
		if got != want {
			t.Errorf("the name is %q, want %q", got, want)
		}
	}
	if runtime.PrimaryName("My_box") == runtime.PrimaryName("my-box") {
		t.Error("two sandboxes have one primary name")
	}
}
