package agentcli

import (
	"encoding/json"
	"testing"
)

func TestSpawnSaysWhatIsWantedOfASandbox(t *testing.T) {
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"--", "x"}, `{"command":["x"],"key":"k"}`},
		{[]string{"--sandbox", "new", "--workspace", "branch", "--cpu", "0.5", "--memory", "1g", "--pids", "9", "--allow-host", "--", "x"},
			`{"allow_host":true,"command":["x"],"key":"k","limits":{"cpu":"0.5","memory":"1g","pids":9},"sandbox":"new","workspace":"branch"}`},
		{[]string{"--stack", "s", "--sandbox", "shared", "--", "x"}, `{"command":["x"],"key":"k","sandbox":"shared","stack":{"name":"s"}}`},
		{[]string{"--share-mount", "/a", "--share-mount", "/b:rw", "--share-tool", "git", "--share-tool", "uv", "--", "x"},
			`{"command":["x"],"key":"k","share_mounts":[{"target":"/a","writable":false},{"target":"/b","writable":true}],"share_tools":["git","uv"]}`},
	} {
		got, err := parseSpawn(append([]string{"--key", "k"}, row.args...))
		if err != nil {
			t.Errorf("%v: %v", row.args, err)
			continue
		}
		raw, err := json.Marshal(got)
		if err != nil || string(raw) != row.want {
			t.Errorf("%v: %s, %v; want %s", row.args, raw, err, row.want)
		}
	}
	if _, err := parseSpawn([]string{"--pids", "-1", "--", "x"}); err == nil {
		t.Error("a negative number of processes is accepted")
	}
}
