package spec

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/agbox/agbox/spec/document"
)

// build reads the key build. Its paths are relative to the folder of the file.
func (d *devcontainer) build(n *document.Node, at *document.Origin) {
	if n.Kind != document.Map {
		d.Report.Problem(at, "Here should be an object with the key dockerfile")
		return
	}
	b := d.below("build", at)
	context, file := ".", DefaultDockerfile
	for _, e := range n.Entries {
		below := d.At(e.Key, document.Child(at.Path, e.Key.Text))
		switch key := e.Key.Text; key {
		case "context":
			context = d.expand(e, below.Path, context)
		case "dockerfile":
			file = d.expand(e, below.Path, file)
		case "target":
			b.set("target", d.expand(e, below.Path, ""), below)
		case "args":
			for _, arg := range e.Value.Entries {
				b.entry("args", arg.Key.Text, d.expand(arg, below.Path, ""), d.At(arg.Key, document.Child(below.Path, arg.Key.Text)))
			}
		case "options":
			if len(items(e.Value)) > 0 {
				d.Report.Problem(below, "Options of the build are not supported: write args and target, or build the image with `agbox image build`, and name it")
			}
		default:
			d.Report.Notice(below, "%s of the build is not supported and was left out", key)
		}
	}
	d.context(b, context, file, at)
}

// oldBuild reads the keys dockerFile and context, an older form of build.
func (d *devcontainer) oldBuild(n *document.Node, at *document.Origin) {
	if d.node.Get("build") != nil {
		d.Report.Problem(at, "build says which Dockerfile it is: remove dockerFile")
		return
	}
	context := d.expand(document.Entry{Value: orNull(d.node.Get("context"))}, "context", ".")
	d.context(d.below("build", at), context, d.expand(document.Entry{Value: n}, at.Path, DefaultDockerfile), at)
}

// context sets folder and Dockerfile of a build. file is relative to the folder of
// devcontainer.json, and becomes relative to the context.
func (d *devcontainer) context(b *layer, context, file string, at *document.Origin) {
	if remote(context) {
		d.Report.Problem(at, "The build context is an address, and only folders of this machine are read: clone it, and name the folder")
		return
	}
	dir := dirOf(d.file)
	absolute := func(path string) string {
		if filepath.IsAbs(path) {
			return filepath.Clean(path)
		}
		return filepath.Join(dir, path)
	}
	rel, err := filepath.Rel(absolute(context), absolute(file))
	if err != nil {
		rel = file // refused as outside the context
	}
	b.set("context", context, at)
	b.set("dockerfile", filepath.ToSlash(rel), at)
}

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

// runArgs reads flags of docker run as the keys of a compose file.
func (d *devcontainer) runArgs(n *document.Node, at *document.Origin) {
	service := &document.Node{Kind: document.Map, Line: n.Line, Column: n.Column}
	all := items(n)
	for i := 0; i < len(all); i++ {
		item := all[i]
		below := d.At(item, document.Item(at.Path, i))
		flag, value, given := strings.Cut(item.Text, "=")
		known, isKnown := runFlags[flag]
		switch isSwitch := slices.Contains(switches, flag); {
		case isSwitch && !isKnown:
			continue
		case isSwitch && !given:
			value = "true"
		case !isKnown:
			d.Report.Problem(below, "%.80q of runArgs is not supported: remove it, or write what it means into the sandbox file", flag)
			continue
		case !given && i+1 == len(all):
			d.Report.Problem(below, "%.80q of runArgs has no value: write it behind the flag", flag)
			continue
		case !given:
			i++
			value = all[i].Text
		}
		if known.key != "" {
			put(service, known.key, known.list, &document.Node{Kind: kindOf(flag), Text: d.text(value, below), Line: item.Line, Column: item.Column})
		}
	}
	c := &composeFile{Reader: d.Reader, resolver: d.resolver, file: d.file, into: d.layer, node: service, reported: d.reported}
	s := &composeService{composeFile: c, layer: d.layer, name: "the container", node: service, primary: true}
	for _, e := range service.Entries {
		s.key(e, d.At(e.Key, document.Child(at.Path, e.Key.Text)))
	}
}

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
