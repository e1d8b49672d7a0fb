package spec

import (
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// compose reads the services of a compose file: all, or only some and what they depend on.
func (r *resolver) compose(file *agboxv1.ConfigFile, primary string, only []string) {
	node := r.yaml(file.GetPath(), file.GetContent())
	if node == nil {
		return
	}
	c := &composeFile{
		resolver: r, file: file, primary: primary, only: only, node: node, reported: make(map[string]bool),
		Reader: document.Reader{File: file.GetPath(), Report: r.report},
	}
	spec := new(agboxv1.CreateSpec)
	c.into = newLayer(spec, c.At(node, ""))
	if node.Kind != document.Map {
		r.unreadable = true
		r.report.Problem(c.At(node, "services"), "This is not a compose file: it should be a map with the key services")
		return
	}
	c.expand(node, "")
	c.include(node, node, map[string]bool{file.GetPath(): true})
	for _, e := range node.Entries {
		c.top(e)
	}
	c.services(node.Get("services"))
	c.networks()
	requiredInFile(spec)
	r.add(spec, c.into.at, dirOf(file))
}

// top reads a top-level key.
func (c *composeFile) top(e document.Entry) {
	at := c.At(e.Key, e.Key.Text)
	switch key := e.Key.Text; {
	case key == "services", key == "version", key == "name", strings.HasPrefix(key, "x-"):
		// version and name have no meaning for a sandbox.
	case key == "secrets", key == "configs":
		// Read where a service uses them.
	case key == "volumes":
		c.topVolumes(e.Value, at)
	case key == "networks":
		// Read with the services, because it depends on them.
	case key == "include":
		// Read before.
	default:
		c.Report.Notice(at, "%s is not supported and was left out", e.Key.Text)
	}
}

func (c *composeFile) topVolumes(n *document.Node, at *document.Origin) {
	if len(n.Entries) > 0 {
		c.Report.Notice(at, "Volumes last as long as the sandbox here: what is in them goes with it")
	}
	for _, e := range n.Entries {
		below := c.At(e.Key, document.Child(at.Path, e.Key.Text))
		for _, option := range e.Value.Entries {
			switch key := option.Key.Text; {
			case key == "external" && option.Value.Text != "false":
				c.Report.Problem(below, "The volume %s is external, and a sandbox has volumes of its own only: mount a folder of the host instead, or remove external", e.Key.Text)
			case key != "external" && !strings.HasPrefix(key, "x-"):
				c.Report.Notice(below, "%s of the volume %s is not supported and was left out", key, e.Key.Text)
			}
		}
	}
}

// networks gives the sandbox an internal network if all services that are read have only such.
// All containers of a sandbox share one network, so there is nothing in between.
func (c *composeFile) networks() {
	services, all := c.node.Get("services"), c.node.Get("networks")
	if services == nil {
		return
	}
	var internal *document.Node
	var inner string
	open := false
	for _, e := range services.Entries {
		if yes, _ := c.wanted(e); !yes || e.Value.Get("network_mode") != nil {
			continue
		}
		for _, name := range networksOf(e.Value) {
			if n := all.Get(name); n.Get("internal").Word() == "true" {
				internal, inner = n, name
			} else {
				open = true
			}
		}
	}
	switch {
	case all == nil:
	case internal == nil:
		c.Report.Notice(c.At(all, "networks"), "Networks are not supported and were left out: all containers of a sandbox share one network of their own")
	case open:
		c.Report.Problem(c.At(internal, document.Child("networks", inner)),
			"The network %s is internal and others of the services are not, and all containers of a sandbox share one network: write internal for all of them, or for none", inner)
	default:
		c.into.set("network", agboxv1.NetworkMode_NETWORK_MODE_INTERNAL.Number(), c.At(internal, document.Child("networks", inner)))
	}
}

// networksOf returns the names of the networks of a service.
func networksOf(service *document.Node) []string {
	n := service.Get("networks")
	if n == nil || len(n.Entries)+len(n.Items) == 0 {
		return []string{"default"}
	}
	var names []string
	for _, e := range n.Entries {
		names = append(names, e.Key.Text)
	}
	for _, item := range n.Items {
		names = append(names, item.Text)
	}
	return names
}

func (c *composeFile) services(n *document.Node) {
	if n == nil || n.Kind != document.Map {
		at := c.into.at.Under("services")
		if n != nil {
			at = c.At(n, "services")
		}
		c.Report.Problem(at, "Here should be services, a map from their names to what they are")
		return
	}
	c.extend(n)
	c.choosePrimary(n)
	if c.only != nil {
		c.only = needed(n, c.only)
	}
	c.findOneShot(n)
	for _, e := range n.Entries {
		at := c.At(e.Key, document.Child("services", e.Key.Text))
		if e.Value.Kind != document.Map {
			c.Report.Problem(at, "Service %.80s should be a map with the key image", e.Key.Text)
			continue
		}
		switch wanted, profile := c.wanted(e); {
		case wanted:
			c.service(e, at)
		case profile != "":
			c.Report.Notice(at, "Service %s was left out, because it belongs to a profile (%s): give --profile %[2]s or set COMPOSE_PROFILES if you want it", e.Key.Text, profile)
		}
	}
}

// wanted reports whether a service is read; if not, the profile for which it is left out.
func (c *composeFile) wanted(e document.Entry) (yes bool, profile string) {
	if e.Key.Text == c.primary {
		return true, ""
	}
	if c.only != nil && !slices.Contains(c.only, e.Key.Text) {
		return false, ""
	}
	if p := e.Value.Get("profiles"); p != nil && len(p.Items) > 0 && !c.profile(p.Items) {
		return false, p.Items[0].Text
	}
	return true, ""
}

// findOneShot finds the services for whose successful end others wait.
func (c *composeFile) findOneShot(services *document.Node) {
	c.oneShot = make(map[string]bool)
	for _, e := range services.Entries {
		if yes, _ := c.wanted(e); !yes || e.Value.Get("depends_on") == nil {
			continue
		}
		for _, d := range e.Value.Get("depends_on").Entries {
			if d.Value.Get("condition").Word() == completed {
				c.oneShot[d.Key.Text] = true
			}
		}
	}
}

// profile reports whether the caller has asked for one of the profiles of a service.
func (c *composeFile) profile(of []*document.Node) bool {
	wanted := strings.Split(c.file.GetVariables()[document.ProfilesVariable], ",")
	return slices.Contains(wanted, "*") || slices.ContainsFunc(of, func(n *document.Node) bool { return slices.Contains(wanted, n.Text) })
}

// choosePrimary finds the service that the request names, or else the one that is marked
// as the primary.
func (c *composeFile) choosePrimary(services *document.Node) {
	if c.primary != "" && services.Get(c.primary) == nil {
		names := make([]string, 0, len(services.Entries))
		for _, e := range services.Entries {
			names = append(names, e.Key.Text)
		}
		c.Report.Problem(c.At(services, "services"), "There is no service %.80q to be the primary: there are %.200s", c.primary, strings.Join(names, ", "))
		c.resolver.unreadable = true
		return
	}
	for _, e := range services.Entries {
		x := e.Value.Get("x-agbox")
		if x == nil {
			continue
		}
		at := c.At(x, document.Child(document.Child("services", e.Key.Text), "x-agbox"))
		switch {
		case x.Text != "primary" && (x.Get("primary") == nil || x.Get("primary").Text != "true"):
			c.Report.Problem(at, "x-agbox says which service is the primary: write 'x-agbox: primary', or remove it")
		case c.primary == "":
			c.primary = e.Key.Text
		case c.primary != e.Key.Text && c.file.GetPrimary() == "":
			c.Report.Problem(at, "Service %s is the primary already: remove x-agbox from one of the two", c.primary)
		}
	}
	c.resolver.noPrimary = c.primary == ""
}

func (c *composeFile) service(e document.Entry, at *document.Origin) {
	s := &composeService{composeFile: c, name: e.Key.Text, node: e.Value, primary: e.Key.Text == c.primary}
	if s.primary {
		s.layer = c.into
	} else {
		service := new(agboxv1.ServiceSpec)
		s.layer = newLayer(service, at)
		s.set("name", e.Key.Text, at)
		defer func() {
			spec := c.into.spec()
			spec.Services = append(spec.Services, service)
			list := c.into.list("services", at)
			list.Items = append(list.Items, s.at)
		}()
	}
	for _, entry := range e.Value.Entries {
		s.key(entry, c.At(entry.Key, document.Child(at.Path, entry.Key.Text)))
	}
	s.finish(at)
}

// composeKeys read the supported keys of a service.
var composeKeys = map[string]func(*composeService, *document.Node, *document.Origin){
	"image":        composeText("image"),
	"platform":     composeText("platform"),
	"user":         composeText("user"),
	"working_dir":  composeText("working_dir"),
	"mem_limit":    composeText("memory_limit"),
	"cpus":         composeText("cpu_limit"),
	"shm_size":     composeText("shm_size"),
	"hostname":     (*composeService).hostName,
	"labels":       (*composeService).labels,
	"pids_limit":   (*composeService).pids,
	"command":      (*composeService).command,
	"entrypoint":   (*composeService).entrypoint,
	"environment":  (*composeService).environment,
	"env_file":     (*composeService).envFile,
	"ports":        (*composeService).ports,
	"volumes":      (*composeService).volumes,
	"tmpfs":        (*composeService).tmpfs,
	"ulimits":      (*composeService).ulimits,
	"depends_on":   (*composeService).dependsOn,
	"healthcheck":  (*composeService).healthcheck,
	"deploy":       (*composeService).deploy,
	"gpus":         (*composeService).gpus,
	"pull_policy":  (*composeService).pullPolicy,
	"restart":      (*composeService).restart,
	"build":        (*composeService).build,
	"network_mode": (*composeService).networkMode,
	"privileged":   securityFlag("privileged"),
	"read_only":    securityFlag("read_only_root"),
	"cap_add":      securityList("cap_add"),
	"cap_drop":     securityList("cap_drop"),
	"devices":      (*composeService).devices,
	"security_opt": (*composeService).securityOpt,
	"secrets":      (*composeService).secrets,
	"configs":      (*composeService).configs,
	"runtime":      refusedKey("a container of another runtime is not made"),
	"pid":          refusedKey("a container has its own processes here"),
	"ipc":          refusedKey("a container has its own shared memory here"),
	"userns_mode":  refusedKey("the engine decides about user namespaces"),
	"sysctls":      refusedKey("settings of the kernel are not changed"),
	"volumes_from": refusedKey("name the volumes under volumes"),
}

func (s *composeService) key(e document.Entry, at *document.Origin) {
	if !shaped(e.Key.Text, e.Value.Kind) {
		s.Report.Problem(at, "Here should be a map of the parts of %s", e.Key.Text)
		return
	}
	if read := composeKeys[e.Key.Text]; read != nil {
		read(s, e.Value, at)
		return
	}
	if !isQuiet(e.Key.Text) {
		s.leftOut(at, e.Key.Text, "")
	}
}

// shaped reports whether a value has a kind that its key accepts.
func shaped(key string, kind document.Kind) bool {
	switch key {
	case "deploy", "healthcheck", "ulimits":
		return kind == document.Map || kind == document.Null
	case "depends_on":
		return kind == document.Map || kind == document.List || kind == document.Null
	}
	return true
}

// finish reports what depends on several keys of the service.
func (s *composeService) finish(at *document.Origin) {
	if !s.primary && s.oneShot[s.name] {
		s.set("one_shot", true, at)
	}
	s.imageOrBuild()
	if s.primary && s.node.Get("hostname") == nil && hostNamePattern.MatchString(s.name) {
		s.set("hostname", s.name, at) // the others find it by its name
	}
	if !s.primary && s.node.Get("image") == nil && s.node.Get("build") == nil {
		s.Report.Problem(at.Under(document.Child(at.Path, "image")), "Service %s has no image: write image or build", s.name)
	}
	if s.local != nil && !s.reported["ports"] {
		s.reported["ports"] = true // told once
		s.Report.Notice(s.local, "Ports without an address are published on 127.0.0.1 only: write 0.0.0.0 before them to open them to the network")
	}
}
