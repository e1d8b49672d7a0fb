package spec

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

func (s *composeService) ports(n *document.Node, at *document.Origin) {
	for i, item := range items(n) {
		below := s.At(item, document.Item(at.Path, i))
		text := item.Text
		if item.Kind == document.Map {
			var ok bool
			if text, ok = s.longPort(item, below); !ok {
				continue
			}
		}
		ports, err := document.ParsePorts(text)
		if err != nil {
			s.Report.Problem(below, "%s", document.Sentence(err))
			continue
		}
		for _, p := range ports {
			s.add("ports", p, below)
			if p.GetHostIp() == "" && s.local == nil {
				s.local = below
			}
		}
	}
}

// longPort converts the long form of a port to the short one.
func (s *composeService) longPort(n *document.Node, at *document.Origin) (string, bool) {
	text := n.Get("target").Word()
	ip, published := n.Get("host_ip").Word(), n.Get("published").Word()
	if published != "" {
		text = published + ":" + text
		if ip != "" {
			text = "[" + ip + "]:" + text
		}
	} else if ip != "" {
		text = "[" + ip + "]:" + text
	}
	if p := n.Get("protocol").Word(); p != "" {
		text += "/" + p
	}
	for _, e := range n.Entries {
		switch e.Key.Text {
		case "target", "host_ip", "published", "protocol", "name", "mode":
		default:
			s.leftOut(s.At(e.Key, document.Child(at.Path, e.Key.Text)), e.Key.Text+" of a port", "")
		}
	}
	if n.Get("target") == nil {
		s.Report.Problem(at, "A port needs a target, the port of the container: write for example {target: 80, published: 8080}")
		return "", false
	}
	return text, true
}

func (s *composeService) volumes(n *document.Node, at *document.Origin) {
	for i, item := range items(n) {
		below := s.At(item, document.Item(at.Path, i))
		if item.Kind == document.Map {
			s.longVolume(item, below)
			continue
		}
		source, target, options := "", item.Text, ""
		if !strings.HasPrefix(target, "/") || strings.Contains(target, ":") {
			at := strings.Index(item.Text, ":/")
			if at <= 0 {
				s.Report.Problem(below, "%.80q is not a volume: write SOURCE:TARGET, with an absolute TARGET", item.Text)
				continue
			}
			source = item.Text[:at]
			target, options, _ = strings.Cut(item.Text[at+1:], ":")
		}
		readOnly := false
		for option := range strings.SplitSeq(options, ",") {
			switch option {
			case "ro":
				readOnly = true
			case "", "rw", "z", "Z", "cached", "consistent", "delegated", "nocopy":
			default:
				s.leftOut(below, "The option "+option+" of a volume", "")
			}
		}
		s.volume(source, target, readOnly, below)
	}
}

func (s *composeService) longVolume(n *document.Node, at *document.Origin) {
	source, target, readOnly := n.Get("source").Word(), n.Get("target").Word(), n.Get("read_only").Word() == "true"
	for _, e := range n.Entries {
		switch e.Key.Text {
		case "type", "source", "target", "read_only":
		case "tmpfs":
			for _, option := range e.Value.Entries {
				if option.Key.Text != "size" && option.Key.Text != "mode" {
					s.leftOut(s.At(option.Key, at.Path), option.Key.Text+" of a tmpfs", "")
				}
			}
		default:
			s.leftOut(s.At(e.Key, document.Child(at.Path, e.Key.Text)), e.Key.Text+" of a volume", "")
		}
	}
	switch kind := n.Get("type").Word(); kind {
	case "tmpfs":
		t := &agboxv1.TmpfsSpec{Target: target, Size: n.Get("tmpfs").Get("size").Word(), Mode: n.Get("tmpfs").Get("mode").Word()}
		s.add("tmpfs", t, at)
	case "bind":
		s.bind(source, target, readOnly, at)
	case "volume":
		s.named(source, target, readOnly, at)
	default:
		s.Report.Problem(at, "The type %.80q of a volume is not supported: write bind, volume or tmpfs", kind)
	}
}

func (s *composeService) volume(source, target string, readOnly bool, at *document.Origin) {
	if strings.ContainsAny(source, "/~") || source == "." || source == ".." {
		s.bind(source, target, readOnly, at)
		return
	}
	s.named(source, target, readOnly, at)
}

func (s *composeService) bind(source, target string, readOnly bool, at *document.Origin) {
	if localtime(source) {
		s.leftOut(at, "The mount of "+source, "set the variable TZ")
		return
	}
	if !s.primary {
		s.copied(source, target, readOnly, at)
		return
	}
	s.add("mounts", &agboxv1.MountSpec{Source: source, Target: target, Writable: !readOnly}, at)
}

// copied gives a service a copy of what it would mount. A mount of a service could lead
// elsewhere after the primary has changed the folder, and nothing in it would notice.
func (s *composeService) copied(source, target string, readOnly bool, at *document.Origin) {
	s.add("copies", &agboxv1.CopySpec{Source: source, Target: target}, at)
	lost := ""
	if !readOnly {
		lost = ", and what it writes there stays in it"
	}
	s.Report.Notice(at, "Service %s gets a copy of %s, made before its first start, instead of a mount: later changes do not reach it%s", s.name, source, lost)
}

// localtime reports whether a file of the host says only which time zone it has.
func localtime(source string) bool { return source == "/etc/localtime" || source == "/etc/timezone" }

func (s *composeService) named(name, target string, readOnly bool, at *document.Origin) {
	if name == "" {
		s.anonymous++
		name = fmt.Sprintf("%s-%d", strings.ToLower(s.name), s.anonymous)
	}
	s.add("volumes", &agboxv1.VolumeSpec{Name: name, Target: target, ReadOnly: readOnly}, at)
}

func (s *composeService) deploy(n *document.Node, at *document.Origin) {
	for _, e := range n.Entries {
		below := s.At(e.Key, document.Child(at.Path, e.Key.Text))
		switch key := e.Key.Text; {
		case key == "resources":
			s.resources(e.Value, below)
		case key == "replicas" && e.Value.Text == "1", strings.HasPrefix(key, "x-"):
		default:
			s.leftOut(below, "deploy."+key, "")
		}
	}
}

func (s *composeService) resources(n *document.Node, at *document.Origin) {
	for _, e := range n.Entries {
		for _, option := range e.Value.Entries {
			below := s.At(option.Key, document.Child(document.Child(at.Path, e.Key.Text), option.Key.Text))
			switch e.Key.Text + "." + option.Key.Text {
			case "limits.cpus":
				s.text("cpu_limit", option.Value, below)
			case "limits.memory":
				s.text("memory_limit", option.Value, below)
			case "limits.pids":
				s.pids(option.Value, below)
			case "reservations.devices":
				s.gpuDevices(option.Value, below)
			default:
				s.leftOut(below, "deploy.resources."+e.Key.Text+"."+option.Key.Text, "")
			}
		}
	}
}

func (s *composeService) gpus(n *document.Node, at *document.Origin) {
	if n.Kind == document.String {
		s.text("gpus", n, at)
		return
	}
	s.gpuDevices(n, at)
}

// gpuDevices reads a device request. Only those for GPUs are supported.
func (s *composeService) gpuDevices(n *document.Node, at *document.Origin) {
	for i, d := range items(n) {
		below := s.At(d, document.Item(at.Path, i))
		gpu := d.Get("capabilities") == nil
		for _, c := range items(orNull(d.Get("capabilities"))) {
			gpu = gpu || c.Text == "gpu"
		}
		var ids []string
		for _, id := range items(orNull(d.Get("device_ids"))) {
			ids = append(ids, id.Text)
		}
		switch count := d.Get("count").Word(); {
		case !gpu:
			s.leftOut(below, "A device request that is not for GPUs", "")
		case len(ids) > 0:
			s.set("gpus", strings.Join(ids, ","), below)
		case count == "" || count == "-1":
			s.set("gpus", "all", below)
		default:
			s.set("gpus", count, below)
		}
	}
}

// pullPolicies are the words of compose.
var pullPolicies = map[string]agboxv1.PullPolicy{
	"always": agboxv1.PullPolicy_PULL_POLICY_ALWAYS, "never": agboxv1.PullPolicy_PULL_POLICY_NEVER,
	"missing": agboxv1.PullPolicy_PULL_POLICY_IF_MISSING, "if_not_present": agboxv1.PullPolicy_PULL_POLICY_IF_MISSING,
}

func (s *composeService) pullPolicy(n *document.Node, at *document.Origin) {
	if p, known := pullPolicies[n.Text]; known {
		s.set("pull_policy", p.Number(), at)
		return
	}
	s.leftOut(at, "The pull_policy "+strconv.Quote(n.Text), "there are always, missing and never")
}

func (s *composeService) restart(n *document.Node, at *document.Origin) {
	switch policy, _, _ := strings.Cut(n.Text, ":"); {
	case s.primary && (policy == "always" || policy == "unless-stopped"):
		s.set("revival", agboxv1.RevivalPolicy_REVIVAL_POLICY_REVIVE.Number(), at)
	case s.primary && policy != "no":
		s.leftOut(at, "restart: "+n.Text, "write revival into the sandbox file")
	case !s.primary && policy == "no" && !s.oneShot[s.name]:
		s.leftOut(at, "restart: no", "services that end are started again, within limits")
	}
}

func (s *composeService) networkMode(n *document.Node, at *document.Origin) {
	if n.Text == "none" {
		s.Report.Problem(at, "Service %s is to have no network, and in a sandbox every container has one: write an internal network for all services, with which they reach only each other, or remove network_mode", s.name)
		return
	}
	s.leftOut(at, "network_mode: "+n.Text, "all containers of a sandbox share one network of their own")
}

func securityFlag(field string) func(*composeService, *document.Node, *document.Origin) {
	return func(s *composeService, n *document.Node, at *document.Origin) {
		if n.Kind != document.Bool {
			s.Report.Problem(at, "Here should be true or false")
		} else if n.Text == "true" {
			s.below("security", at).set(field, true, at)
		}
	}
}

func securityList(field string) func(*composeService, *document.Node, *document.Origin) {
	return func(s *composeService, n *document.Node, at *document.Origin) {
		for i, item := range items(n) {
			s.below("security", at).words(field, []string{capability(item.Text)}, s.At(item, document.Item(at.Path, i)))
		}
	}
}

// capability returns the name without the prefix that other tools allow.
func capability(name string) string {
	return strings.TrimPrefix(strings.ToUpper(name), "CAP_")
}

func (s *composeService) devices(n *document.Node, at *document.Origin) {
	for i, item := range items(n) {
		below := s.At(item, document.Item(at.Path, i))
		parts := strings.Split(item.Text, ":")
		if len(parts) > 1 && parts[1] != parts[0] || len(parts) > 2 && parts[2] != "rwm" {
			s.leftOut(below, "The device "+item.Text, "a device has the same name inside, and all rights")
			continue
		}
		s.below("security", at).words("devices", parts[:1], below)
	}
}

func (s *composeService) securityOpt(n *document.Node, at *document.Origin) {
	for i, item := range items(n) {
		below := s.At(item, document.Item(at.Path, i))
		if !securityOption(item.Text, s.below("security", at), below) {
			s.leftOut(below, "The security_opt "+item.Text, "")
		}
	}
}

// securityOption reads a security option of the engine. It returns false for an
// unsupported one.
func securityOption(text string, security *layer, at *document.Origin) bool {
	switch strings.ReplaceAll(text, "=", ":") {
	case "seccomp:unconfined":
		security.set("seccomp_unconfined", true, at)
	case "no-new-privileges", "no-new-privileges:true":
		// The default.
	case "no-new-privileges:false":
		security.set("allow_new_privileges", true, at)
	default:
		return false
	}
	return true
}

// refusedKey refuses a key that changes what the service is.
func refusedKey(why string) func(*composeService, *document.Node, *document.Origin) {
	return func(s *composeService, _ *document.Node, at *document.Origin) {
		s.Report.Problem(at, "%s of service %s is not supported: %s", at.Path[lastDot(at.Path):], s.name, why)
	}
}

// lastDot is the index behind the last dot of a path.
func lastDot(text string) int {
	for i := len(text); i > 0; i-- {
		if text[i-1] == '.' {
			return i
		}
	}
	return 0
}

func (s *composeService) secrets(n *document.Node, at *document.Origin) {
	s.given("secrets", "/run/secrets", n, at)
}

func (s *composeService) configs(n *document.Node, at *document.Origin) {
	s.given("configs", "/", n, at)
}

// given copies the files that a service gets as secrets or configs into it. A target that
// is not absolute is below dir.
func (s *composeService) given(kind, dir string, n *document.Node, at *document.Origin) {
	for i, item := range items(n) {
		below := s.At(item, document.Item(at.Path, i))
		name, target, owner := item.Text, "", ""
		if item.Kind == document.Map {
			name, target = item.Get("source").Word(), item.Get("target").Word()
			if uid := item.Get("uid").Word(); uid != "" {
				owner = uid
				if gid := item.Get("gid").Word(); gid != "" {
					owner += ":" + gid
				}
			}
			if item.Get("mode") != nil {
				s.leftOut(below, "mode of "+kind, "the file keeps its own")
			}
		}
		if target == "" {
			target = name
		}
		if !path.IsAbs(target) {
			target = path.Join(dir, target)
		}
		if source, ok := s.fileOf(kind, name, below); ok {
			s.add("copies", &agboxv1.CopySpec{Source: source, Target: target, Owner: owner}, below)
		}
	}
}

// fileOf returns the file that a top-level secret or config names.
func (s *composeService) fileOf(kind, name string, at *document.Origin) (string, bool) {
	entry := s.composeFile.node.Get(kind).Get(name)
	switch {
	case entry == nil:
		s.Report.Problem(at, "There is no %.80q under %s at the top of the file: add it there", name, kind)
	case entry.Get("file") != nil:
		return s.word(entry.Get("file"), at)
	default:
		s.Report.Problem(at, "%s has no file under %s, and nothing else is read: write its content into a file, and name that", name, kind)
	}
	return "", false
}
