package spec

import (
	"slices"

	"github.com/agbox/agbox/spec/document"
)

// runFlags are flags of docker run and the keys of a compose file that mean the same. With
// a list, each use adds one.
var runFlags = map[string]struct {
	key  string
	list bool
}{
	"--cap-add": {"cap_add", true}, "--cap-drop": {"cap_drop", true}, "--security-opt": {"security_opt", true}, "--device": {"devices", true},
	"-e": {"environment", true}, "--env": {"environment", true}, "-l": {"labels", true}, "--label": {"labels", true},
	"-v": {"volumes", true}, "--volume": {"volumes", true}, "-p": {"ports", true}, "--publish": {"ports", true}, "--tmpfs": {"tmpfs", true},
	"-m": {"mem_limit", false}, "--memory": {"mem_limit", false}, "--cpus": {"cpus", false}, "--shm-size": {"shm_size", false}, "--pids-limit": {"pids_limit", false},
	"-h": {"hostname", false}, "--hostname": {"hostname", false}, "-w": {"working_dir", false}, "--workdir": {"working_dir", false},
	"-u": {"user", false}, "--user": {"user", false}, "--platform": {"platform", false}, "--gpus": {"gpus", false}, "--restart": {"restart", false},
	"--privileged": {"privileged", false}, "--read-only": {"read_only", false},
	// Read, and refused or told as in a compose file.
	"--network": {"network_mode", false}, "--net": {"network_mode", false}, "--pid": {"pid", false}, "--ipc": {"ipc", false},
	"--userns": {"userns_mode", false}, "--runtime": {"runtime", false}, "--sysctl": {"sysctls", true}, "--volumes-from": {"volumes_from", true},
	"--add-host": {"extra_hosts", true}, "--dns": {"dns", true},
	// These mean nothing here.
	"--name": {"", false}, "--stop-timeout": {"", false}, "--log-driver": {"", false}, "--log-opt": {"", false}, "--pull": {"", false},
}

// switches are flags without a value. Those without a key mean nothing here.
var switches = []string{"--privileged", "--read-only", "--init", "--rm", "-it", "-i", "-t", "-d", "--interactive", "--tty", "--detach"}

// kindOf is the kind of a flag's value.
func kindOf(flag string) document.Kind {
	if slices.Contains(switches, flag) {
		return document.Bool
	}
	return document.String
}

// put sets a key of a map, or adds to its list.
func put(m *document.Node, key string, list bool, value *document.Node) {
	if there := m.Get(key); there != nil {
		if list {
			there.Items = append(there.Items, value)
		} else {
			*there = *value
		}
		return
	}
	if list {
		value = &document.Node{Kind: document.List, Items: []*document.Node{value}, Line: value.Line, Column: value.Column}
	}
	m.Entries = append(m.Entries, document.Entry{Key: &document.Node{Kind: document.String, Text: key, Line: value.Line, Column: value.Column}, Value: value})
}
