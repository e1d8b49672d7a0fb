package spec

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// devcontainer is a devcontainer.json being read into the primary.
type devcontainer struct {
	document.Reader
	*layer
	file *agboxv1.ConfigFile
	// folder is the project's folder on the host, inside its path in the container.
	folder, inside string
	node           *document.Node
	reported       map[string]bool
	resolver       *resolver
}

// expand replaces the variables of a value. other is the result for a missing value.
func (d *devcontainer) expand(e document.Entry, path, other string) string {
	switch e.Value.Kind {
	case document.String:
	case document.Null:
		return other
	default:
		d.Report.Problem(d.At(e.Value, path), "Here should be text in double quotes")
		return other
	}
	return d.text(e.Value.Text, d.At(e.Value, path))
}

var devVariable = regexp.MustCompile(`\$\{([A-Za-z]+)(?::([^}:]*))?(?::([^}]*))?\}`)

// text replaces the variables of a text.
func (d *devcontainer) text(text string, at *document.Origin) string {
	return devVariable.ReplaceAllStringFunc(text, func(found string) string {
		parts := devVariable.FindStringSubmatch(found)
		switch parts[1] {
		case "localWorkspaceFolder":
			return d.folder
		case "localWorkspaceFolderBasename":
			return path.Base(d.folder)
		case "devcontainerId":
			return "sandbox" // volumes are private to a sandbox, so any constant will do
		case "containerWorkspaceFolder":
			return d.inside
		case "containerWorkspaceFolderBasename":
			return path.Base(d.inside)
		case "localEnv", "env":
			if value, ok := d.file.GetVariables()[parts[2]]; ok {
				return value
			}
			if parts[3] == "" && !d.reported[parts[2]] {
				d.reported[parts[2]] = true
				d.Report.Notice(at, "The variable %s is not set in your environment and stands for nothing", parts[2])
			}
			return parts[3]
		case "containerEnv":
			if value, ok := d.spec().GetEnvs()[parts[2]]; ok {
				return value
			}
			d.Report.Notice(at, "The environment of the container is not known before it runs: %s stands for %q here", found, parts[3])
			return parts[3]
		}
		return found // a variable of the shell, as in "echo ${HOME}"
	})
}

// imagesOwn returns a variable of the container that a text uses and that is not set
// here, or "". An empty value in its place would often be wrong: with a PATH that lacks
// the image's own, no command is found.
func (d *devcontainer) imagesOwn(text string) string {
	for _, at := range devVariable.FindAllStringSubmatchIndex(text, -1) {
		if text[at[2]:at[3]] != "containerEnv" || at[4] < 0 || at[6] >= 0 { // another kind, or with a default
			continue
		}
		name := text[at[4]:at[5]]
		if _, set := d.spec().GetEnvs()[name]; !set {
			return name
		}
	}
	return ""
}

// devLeftOut are unsupported keys, and why.
var devLeftOut = map[string]string{
	"initializeCommand": "nothing of a file runs on the host; run it yourself before, if the sandbox needs what it makes",
	"postAttachCommand": "run it with `agbox exec`",
	"customizations":    "it is about an editor",
	"overrideCommand":   "the command of the image runs beside the commands that you start",
	"shutdownAction":    "stop the sandbox with `agbox stop`, or give idle_ttl",
	"hostRequirements":  "give cpu_limit, memory_limit and gpus in the sandbox file",
}

// key reads one key that does not depend on others.
func (d *devcontainer) key(e document.Entry, at *document.Origin) {
	switch key := e.Key.Text; key {
	case "$schema", "init", "updateRemoteUserUID", "workspaceFolder", "workspaceMount", "onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand", "dockerComposeFile", "service", "runServices", "context", "features", "overrideFeatureInstallOrder":
		// The supervisor does the work of init. The others are read together.
	case "name":
		d.entry("labels", "devcontainer.name", d.expand(e, key, ""), at)
	case "image":
		d.set("image", d.expand(e, key, ""), at)
	case "remoteEnv":
		d.environment(e.Value, at)
	case "mounts":
		d.mounts(e.Value, at)
	case "forwardPorts", "appPort":
		d.ports(e.Value, at)
	case "remoteUser":
		d.set("user", d.expand(e, key, ""), at)
	case "containerUser":
		if d.node.Get("remoteUser") == nil {
			d.set("user", d.expand(e, key, ""), at)
		}
	case "capAdd":
		for i, item := range items(e.Value) {
			d.below("security", at).words("cap_add", []string{capability(item.Text)}, d.At(item, document.Item(at.Path, i)))
		}
	case "privileged":
		if e.Value.Text == "true" {
			d.below("security", at).set("privileged", true, at)
		}
	case "securityOpt":
		for i, item := range items(e.Value) {
			below := d.At(item, document.Item(at.Path, i))
			if !securityOption(item.Text, d.below("security", at), below) {
				d.Report.Notice(below, "The securityOpt %s is not supported and was left out", item.Text)
			}
		}
	case "build":
		d.build(e.Value, at)
	case "dockerFile":
		d.oldBuild(e.Value, at)
	case "runArgs":
		d.runArgs(e.Value, at)
	default:
		d.leftOut(key, at)
	}
}

func (d *devcontainer) leftOut(key string, at *document.Origin) {
	why := ""
	if devLeftOut[key] != "" {
		why = ": " + devLeftOut[key]
	}
	d.Report.Notice(at, "%s is not supported and was left out%s", key, why)
}

func (d *devcontainer) environment(n *document.Node, at *document.Origin) {
	for _, e := range n.Entries {
		below := d.At(e.Key, document.Child(at.Path, e.Key.Text))
		switch e.Value.Kind {
		case document.Null:
			d.Report.Notice(below, "Variables cannot be taken away: %s stays as the image has it", e.Key.Text)
		case document.List, document.Map:
			d.Report.Problem(below, "Here should be text")
		default:
			if missing := d.imagesOwn(e.Value.Text); missing != "" {
				d.Report.Notice(below, "%s was left out, because the image's own %s is not known before the container runs: set it whole", e.Key.Text, missing)
				continue
			}
			d.entry("envs", e.Key.Text, d.text(e.Value.Text, below), below)
		}
	}
	if n.Kind != document.Map {
		d.Report.Problem(at, "Here should be an object of variables")
	}
}

func (d *devcontainer) ports(n *document.Node, at *document.Origin) {
	for i, item := range items(n) {
		below := d.At(item, document.Item(at.Path, i))
		text := strings.TrimPrefix(item.Text, "localhost:")
		if strings.Trim(text, "0123456789") == "" {
			text += ":" + text // forward to the same port
		} else if name, _, ok := strings.Cut(text, ":"); ok && strings.Trim(name, "0123456789.[]") != "" {
			d.Report.Notice(below, "%s is a port of a service and was left out: publish it there", text)
			continue
		}
		ports, err := document.ParsePorts(text)
		if err != nil {
			d.Report.Problem(below, "%s", document.Sentence(err))
			continue
		}
		for _, p := range ports {
			d.add("ports", p, below)
		}
	}
}

func (d *devcontainer) mounts(n *document.Node, at *document.Origin) {
	for i, item := range items(n) {
		below := d.At(item, document.Item(at.Path, i))
		m, err := d.mount(item, below)
		if err != nil {
			d.Report.Problem(below, "%s", document.Sentence(err))
			continue
		}
		switch m["type"] {
		case "bind":
			d.add("mounts", &agboxv1.MountSpec{Source: m["source"], Target: m["target"], Writable: m["readonly"] == ""}, below)
		case "tmpfs":
			d.add("tmpfs", &agboxv1.TmpfsSpec{Target: m["target"], Size: m["tmpfs-size"], Mode: m["tmpfs-mode"]}, below)
		case "volume":
			name := m["source"]
			if name == "" {
				name = fmt.Sprintf("volume-%d", i+1)
			}
			d.Report.Notice(below, "Volumes last as long as the sandbox here: what is in %s goes with it", name)
			d.add("volumes", &agboxv1.VolumeSpec{Name: name, Target: m["target"], ReadOnly: m["readonly"] != ""}, below)
		}
	}
}

// mountKeys map the engine's words for the parts of a mount to ours.
var mountKeys = map[string]string{
	"type": "type", "source": "source", "src": "source", "target": "target", "dst": "target", "destination": "target",
	"readonly": "readonly", "ro": "readonly", "tmpfs-size": "tmpfs-size", "tmpfs-mode": "tmpfs-mode",
}

// mount reads a mount as an object or as the string of docker run --mount.
func (d *devcontainer) mount(n *document.Node, at *document.Origin) (map[string]string, error) {
	m := map[string]string{}
	set := func(key, value string) {
		name, known := mountKeys[key]
		switch {
		case name == "readonly" && (value == "false" || value == "0"):
		case name == "readonly":
			m[name] = "true"
		case known:
			m[name] = d.text(value, at)
		case key != "consistency":
			d.Report.Notice(at, "%s of a mount is not supported and was left out", key)
		}
	}
	switch n.Kind {
	case document.String:
		for part := range strings.SplitSeq(n.Text, ",") {
			key, value, _ := strings.Cut(part, "=")
			set(strings.TrimSpace(key), value)
		}
	case document.Map:
		for _, e := range n.Entries {
			set(e.Key.Text, e.Value.Text)
		}
	}
	if m["type"] == "" {
		m["type"] = "volume" // the engine's default
		if filepath.IsAbs(m["source"]) {
			m["type"] = "bind"
		}
	}
	if m["target"] == "" {
		return nil, fmt.Errorf("the mount has no target: write for example \"source=${localWorkspaceFolder}/data,target=/data,type=bind\"")
	}
	if m["type"] != "bind" && m["type"] != "volume" && m["type"] != "tmpfs" {
		return nil, fmt.Errorf("%.80q is not the type of a mount: write bind, volume or tmpfs", m["type"])
	}
	return m, nil
}

// commands reads the commands that run after the container was made, in the order in which
// they run.
func (d *devcontainer) commands() {
	for _, key := range []string{"onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand"} {
		n := d.node.Get(key)
		if n == nil {
			continue
		}
		if key == "postStartCommand" {
			d.Report.Notice(d.At(n, key), "postStartCommand runs when the sandbox is made, and not when it is started again: run it with `agbox exec` then")
		}
		if n.Kind != document.Map {
			d.command(n, d.At(n, key))
			continue
		}
		for _, e := range n.Entries {
			d.command(e.Value, d.At(e.Key, document.Child(key, e.Key.Text)))
		}
	}
}

func (d *devcontainer) command(n *document.Node, at *document.Origin) {
	switch n.Kind {
	case document.Null:
	case document.String:
		d.words("post_create", []string{d.text(n.Text, at)}, at)
	case document.List:
		var words []string
		for _, item := range n.Items {
			words = append(words, d.text(item.Text, at))
		}
		d.words("post_create", []string{document.ShellLine(words)}, at)
	default:
		d.Report.Problem(at, "A command is a string for the shell, or a list of words")
	}
}

// matchUser lets the user write the project where it is mounted, unless
// updateRemoteUserUID is false.
func (d *devcontainer) matchUser() {
	n := d.node.Get("updateRemoteUserUID")
	if n != nil && n.Text == "false" {
		return
	}
	folder, at := d.spec().GetWorkspace().GetTarget(), d.layer.at.Under("workspaceFolder")
	if inside := d.node.Get("workspaceFolder"); inside != nil {
		folder, at = d.inside, d.At(inside, "workspaceFolder")
	}
	if path.IsAbs(folder) && folder != "/" {
		d.set("match_user", folder, at)
	}
}

// workspace is the project, mounted as in a development container.
func (d *devcontainer) workspace() {
	n := d.node.Get("workspaceMount")
	at := d.layer.at.Under("workspaceMount")
	if n != nil {
		at = d.At(n, "workspaceMount")
	}
	if inside := d.node.Get("workspaceFolder"); inside != nil {
		d.set("working_dir", d.inside, d.At(inside, "workspaceFolder"))
		if n == nil {
			at = d.At(inside, "workspaceFolder")
		}
	}
	if n != nil && n.Text == "" || n == nil && d.node.Get("dockerComposeFile") != nil {
		return // no workspace, or that of the compose file
	}
	source, target := d.folder, d.inside
	if n != nil {
		m, err := d.mount(n, at)
		if err != nil {
			d.Report.Problem(at, "%s", document.Sentence(err))
			return
		}
		if m["type"] != "bind" {
			d.Report.Problem(at, "The workspace is a folder of the host here: write type=bind, or remove workspaceMount")
			return
		}
		source, target = m["source"], m["target"]
	}
	w := d.below("workspace", at)
	w.set("source", source, at)
	w.set("target", target, at)
	w.set("mount", true, at)
}

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
