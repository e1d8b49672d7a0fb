package reconcile

import (
	"slices"
	"testing"

	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestVariablesOfGoReachTheCommandsAndNotTheSupervisor(t *testing.T) {
	engine := runtimetest.NewFake()
	engine.AddImage(runtimetest.FakeImage, runtime.Image{Cmd: []string{"sh"}, Env: []string{"GOMEMLIMIT=1", "GOGC=1", "PATH=/bin"}})
	l := begin(t, engine, t.TempDir())
	l.createSpec("a", &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Envs: map[string]string{"GOGC": "50", "GODEBUG": "x=1", "A": "B"}})
	l.await("a", machine.Ready)
	described, err := engine.DescribeContainer(t.Context(), l.objects().Containers[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range []string{"A=B", "GOGC=", "GOMEMLIMIT=", "GODEBUG=profstackdepth=0", "GOMAXPROCS=", "GOTRACEBACK=", "GOCOVERDIR="} {
		if !slices.Contains(described.Env, entry) {
			t.Errorf("%s is missing in the environment %v", entry, described.Env)
		}
	}
	if want := []string{"GOMEMLIMIT=1", "GOGC=1", "GODEBUG=x=1", "GOGC=50"}; !slices.Equal(l.boot("a").GetCommandEnv(), want) {
		t.Errorf("the commands get %v, want %v", l.boot("a").GetCommandEnv(), want)
	}
}
