package docker

import (
	"fmt"
	"io/fs"
	"testing"
)

func TestResolversAreThoseThatTheEngineAsks(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"of the host": {
			map[string]string{hostResolvers: "# x\nsearch a.b\nnameserver 10.0.0.2\nnameserver fe80::1%eth0\nnameserver 10.0.0.2\nnameserver 192.0.2.1\n"},
			"[10.0.0.2 192.0.2.1 fe80::1]",
		},
		"behind the stub of systemd": {
			map[string]string{hostResolvers: "nameserver 127.0.0.53\noptions edns0\n", behindStub: "nameserver 192.168.1.1\n"},
			"[192.168.1.1]",
		},
		"of the engine's settings": {
			map[string]string{engineSettings: `{"dns": ["172.17.0.1"], "debug": true}`, hostResolvers: "nameserver 10.0.0.2\n"},
			"[172.17.0.1]",
		},
		"settings without servers": {
			map[string]string{engineSettings: `{"debug": true}`, hostResolvers: "nameserver 10.0.0.2"},
			"[10.0.0.2]",
		},
		"settings that cannot be read": {
			map[string]string{engineSettings: "{", hostResolvers: "nameserver 10.0.0.2"},
			"[10.0.0.2]",
		},
		"no files":        {nil, "[]"},
		"only a loopback": {map[string]string{hostResolvers: "nameserver ::1\nnameserver 127.0.0.1\nnameserver nonsense\nnameserver\n"}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			got := fmt.Sprint(resolvers(func(path string) ([]byte, error) {
				if text, ok := c.files[path]; ok {
					return []byte(text), nil
				}
				return nil, fs.ErrNotExist
			}))
			if got != c.want {
				t.Errorf("resolvers are %s, want %s", got, c.want)
			}
		})
	}
}
