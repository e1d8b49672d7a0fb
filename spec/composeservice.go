package spec

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// composeService is a service of a compose file being read. It becomes a service of the
// sandbox or the primary.
type composeService struct {
	*composeFile
	*layer
	name    string
	node    *document.Node
	primary bool
	// anonymous counts volumes without a name.
	anonymous int
	// local is set if a port was published without an address.
	local *document.Origin
}

var hostNamePattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

func composeText(field string) func(*composeService, *document.Node, *document.Origin) {
	return func(s *composeService, n *document.Node, at *document.Origin) { s.text(field, n, at) }
}

// leftOut reports that a key has no effect.
func (s *composeService) leftOut(at *document.Origin, what, why string) {
	if why != "" {
		why = ": " + why
	}
	s.Report.Notice(at, "%s of service %s is not supported and was left out%s", what, s.name, why)
}

// word reads a scalar.
func (s *composeService) word(n *document.Node, at *document.Origin) (string, bool) {
	if n.Kind == document.List || n.Kind == document.Map || n.Kind == document.Null {
		s.Report.Problem(at, "Here should be one word or number")
		return "", false
	}
	return n.Text, true
}

func (s *composeService) text(field string, n *document.Node, at *document.Origin) {
	if text, ok := s.word(n, at); ok {
		s.set(field, text, at)
	}
}

func (s *composeService) hostName(n *document.Node, at *document.Origin) {
	if s.primary {
		s.text("hostname", n, at)
	} else if n.Text != s.name {
		s.leftOut(at, "hostname", "it is reached as "+s.name)
	}
}

func (s *composeService) pids(n *document.Node, at *document.Origin) {
	switch v, err := strconv.ParseUint(n.Text, 10, 32); {
	case n.Text == "-1":
		s.leftOut(at, "An unlimited pids_limit", "there is always one, 4096 unless it is given")
	case err != nil:
		s.Report.Problem(at, "%.80q is not a number of processes: write for example 512", n.Text)
	default:
		s.set("pids_limit", uint32(v), at)
	}
}

// commandWords reads a command in either form of compose.
func (s *composeService) commandWords(n *document.Node, at *document.Origin) ([]string, bool) {
	if n.Kind == document.String {
		words, err := document.ShellWords(n.Text)
		if err != nil {
			s.Report.Problem(at, "%s", document.Sentence(err))
			return nil, false
		}
		return words, true
	}
	var words []string
	for i, item := range items(n) {
		text, ok := s.word(item, s.At(item, document.Item(at.Path, i)))
		if !ok {
			return nil, false
		}
		words = append(words, text)
	}
	return words, true
}

func (s *composeService) command(n *document.Node, at *document.Origin) {
	if words, ok := s.commandWords(n, at); ok {
		s.words("command", words, at)
	}
}

// entrypoint replaces that of the image. An empty one removes it.
func (s *composeService) entrypoint(n *document.Node, at *document.Origin) {
	words, ok := s.commandWords(n, at)
	if !ok {
		return
	}
	if len(words) == 0 {
		words = []string{""}
	}
	s.words("entrypoint", words, at)
}

// pairs reads a map or a list of KEY=VALUE. KEY alone has no value.
func (s *composeService) pairs(n *document.Node, at *document.Origin, set func(key, value string, at *document.Origin), unset func(key string, at *document.Origin)) {
	for _, e := range n.Entries {
		below := s.At(e.Key, document.Child(at.Path, e.Key.Text))
		switch e.Value.Kind {
		case document.Null:
			unset(e.Key.Text, below)
		case document.List, document.Map:
			s.Report.Problem(below, "Here should be text")
		default:
			set(e.Key.Text, e.Value.Text, below)
		}
	}
	for i, item := range n.Items {
		below := s.At(item, document.Item(at.Path, i))
		if key, value, ok := strings.Cut(item.Text, "="); ok {
			set(key, value, below)
		} else if text, ok := s.word(item, below); ok {
			unset(text, below)
		}
	}
	if n.Kind != document.Map && n.Kind != document.List && n.Kind != document.Null {
		s.Report.Problem(at, "Here should be a map, or a list of KEY=VALUE")
	}
}

func (s *composeService) environment(n *document.Node, at *document.Origin) {
	set := func(key, value string, at *document.Origin) { s.entry("envs", key, value, at) }
	s.pairs(n, at, set, func(key string, at *document.Origin) {
		if value, ok := s.file.GetVariables()[key]; ok {
			set(key, value, at)
			return
		}
		s.Report.Notice(at, "The variable %s has no value here and none in your environment, and was left out", key)
	})
}

func (s *composeService) labels(n *document.Node, at *document.Origin) {
	if !s.primary {
		s.leftOut(at, "labels", "only a sandbox has labels")
		return
	}
	set := func(key, value string, at *document.Origin) { s.entry("labels", key, value, at) }
	s.pairs(n, at, set, func(key string, at *document.Origin) { set(key, "", at) })
}

func (s *composeService) tmpfs(n *document.Node, at *document.Origin) {
	for i, item := range items(n) {
		below := s.At(item, document.Item(at.Path, i))
		t, err := document.ParseTmpfs(item.Text)
		if err != nil {
			s.Report.Problem(below, "%s", document.Sentence(err))
			continue
		}
		s.add("tmpfs", t, below)
	}
}

func (s *composeService) ulimits(n *document.Node, at *document.Origin) {
	for _, e := range n.Entries {
		below := s.At(e.Key, document.Child(at.Path, e.Key.Text))
		soft, hard := e.Value.Text, e.Value.Text
		if e.Value.Kind == document.Map {
			soft, hard = e.Value.Get("soft").Word(), e.Value.Get("hard").Word()
		}
		u, err := document.ParseUlimit(fmt.Sprintf("%s=%s:%s", e.Key.Text, soft, hard))
		if err != nil {
			s.Report.Problem(below, "A ulimit is a number, or a map of soft and hard")
			continue
		}
		s.add("ulimits", u, below)
	}
}

// conditions are the words of compose for the required state of a dependency.
var conditions = map[string]agboxv1.DependencyCondition{
	"":                agboxv1.DependencyCondition_DEPENDENCY_CONDITION_STARTED,
	"service_started": agboxv1.DependencyCondition_DEPENDENCY_CONDITION_STARTED,
	"service_healthy": agboxv1.DependencyCondition_DEPENDENCY_CONDITION_HEALTHY,
	completed:         agboxv1.DependencyCondition_DEPENDENCY_CONDITION_STARTED, // of a one-shot service
}

// completed is the condition that a service has ended with code 0.
const completed = "service_completed_successfully"

func (s *composeService) dependsOn(n *document.Node, at *document.Origin) {
	depend := func(name, condition string, at *document.Origin) {
		c, known := conditions[condition]
		switch {
		case !known:
			s.Report.Problem(at, "The condition %.80q of service %s cannot be met here: write service_started, service_healthy or service_completed_successfully", condition, s.name)
		case condition == completed && name == s.composeFile.primary:
			s.Report.Problem(at, "Service %s is the primary, which does not end: write service_started", name)
		case s.primary:
			// A sandbox is READY only with its services.
		case name == s.composeFile.primary:
			s.leftOut(at, "The dependency on "+name, "services start before the primary is ready")
		default:
			s.add("depends_on", &agboxv1.ServiceDependency{Name: name, Condition: c}, at)
		}
	}
	for i, item := range n.Items {
		depend(item.Text, "", s.At(item, document.Item(at.Path, i)))
	}
	for _, e := range n.Entries {
		below := s.At(e.Key, document.Child(at.Path, e.Key.Text))
		for _, option := range e.Value.Entries {
			if key := option.Key.Text; key != "condition" && !(key == "required" && option.Value.Text == "true") {
				s.leftOut(s.At(option.Key, document.Child(below.Path, key)), key+" of the dependency on "+e.Key.Text, "")
			}
		}
		depend(e.Key.Text, e.Value.Get("condition").Word(), below)
	}
}

func (s *composeService) healthcheck(n *document.Node, at *document.Origin) {
	if s.primary {
		s.leftOut(at, "healthcheck", "the primary is up when commands can run in it")
		return
	}
	l := s.below("healthcheck", at)
	for _, e := range n.Entries {
		below := s.At(e.Key, document.Child(at.Path, e.Key.Text))
		switch key := e.Key.Text; key {
		case "test":
			if e.Value.Kind == document.String {
				l.words("test", []string{"CMD-SHELL", e.Value.Text}, below)
			} else if words, ok := s.commandWords(e.Value, below); ok {
				l.words("test", words, below)
			}
		case "disable":
			if e.Value.Text == "true" {
				l.words("test", []string{"NONE"}, below)
			}
		case "retries":
			if v, err := strconv.ParseUint(e.Value.Text, 10, 32); err != nil {
				s.Report.Problem(below, "%.80q is not a number: write for example 3", e.Value.Text)
			} else {
				l.set("retries", uint32(v), below)
			}
		case "interval", "timeout", "start_period", "start_interval":
			d, err := document.ParseDuration(e.Value.Text)
			if err != nil {
				s.Report.Problem(below, "%s", document.Sentence(err))
				continue
			}
			l.set(key, durationpb.New(d).ProtoReflect(), below)
		default:
			s.leftOut(below, key+" of the healthcheck", "")
		}
	}
}

// buildRefused are the parts of a build without which it would fail or be another one, and
// what to do instead.
var buildRefused = map[string]string{
	"additional_contexts": "copy what it needs into the context",
	"ssh":                 "no key of this machine is handed to a build; copy what it needs into the context",
	"secrets":             "no secret is handed to a build; make the image with `agbox image build`, and name it",
	"privileged":          "a build has no such rights here",
	"entitlements":        "a build has no such rights here",
}

// build reads how the image of a service is built.
func (s *composeService) build(n *document.Node, at *document.Origin) {
	b := s.below("build", at)
	if n.Kind == document.String {
		s.context(b, n.Text, at)
		return
	}
	if n.Kind != document.Map {
		s.Report.Problem(at, "Here should be the folder of the Dockerfile, or a map with the key context")
		return
	}
	context := n.Get("context").Word()
	if context == "" && n.Get("dockerfile_inline") == nil {
		s.context(b, ".", at)
	}
	for _, e := range n.Entries {
		below := s.At(e.Key, document.Child(at.Path, e.Key.Text))
		switch key := e.Key.Text; key {
		case "context":
			s.context(b, context, below)
		case "dockerfile":
			b.set("dockerfile", dockerfileIn(context, e.Value.Text), below)
		case "dockerfile_inline", "target":
			if text, ok := s.word(e.Value, below); ok {
				b.set(key, text, below)
			}
		case "args":
			s.buildArgs(b, e.Value, below)
		default:
			if why := buildRefused[key]; why != "" {
				s.Report.Problem(below, "%s of the build of service %s is not supported: %s", key, s.name, why)
			} else if !strings.HasPrefix(key, "x-") {
				s.leftOut(below, "build."+key, "")
			}
		}
	}
}

// context sets the folder of a build.
func (s *composeService) context(b *layer, text string, at *document.Origin) {
	if remote(text) {
		s.Report.Problem(at, "The build context of service %s is an address, and only folders of this machine are read: clone it, and name the folder", s.name)
		return
	}
	b.set("context", text, at)
}

func (s *composeService) buildArgs(b *layer, n *document.Node, at *document.Origin) {
	set := func(key, value string, at *document.Origin) { b.entry("args", key, value, at) }
	s.pairs(n, at, set, func(key string, at *document.Origin) {
		if value, ok := s.file.GetVariables()[key]; ok {
			set(key, value, at)
		}
	})
}

// imageOrBuild drops the name that a built image would get. Giving it would let a file put
// its own image in the place of another one on this machine.
func (s *composeService) imageOrBuild() {
	image := s.node.Get("image")
	if s.node.Get("build") == nil || image == nil {
		return
	}
	s.m.Clear(s.field("image"))
	delete(s.layer.at.Fields, "image")
}

// envFile reads the variables of files. Those under environment override them.
func (s *composeService) envFile(n *document.Node, at *document.Origin) {
	said := make(map[string]bool)
	s.pairs(orNull(s.node.Get("environment")), at, func(key, _ string, _ *document.Origin) { said[key] = true }, func(key string, _ *document.Origin) { said[key] = true })
	for i, item := range items(n) {
		below := s.At(item, document.Item(at.Path, i))
		name, required := item.Text, true
		if item.Kind == document.Map {
			name, required = item.Get("path").Word(), item.Get("required").Word() != "false"
		}
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(below.File), name)
		}
		file := namedFile(s.file, name)
		if file == nil {
			if required {
				s.Report.Problem(below, "The file %.200s of service %s is not there: make it, or write {path: %[1]s, required: false}", name, s.name)
			}
			continue
		}
		for key, value := range document.EnvFile(file.GetContent()) {
			if !said[key] {
				s.entry("envs", key, value, below)
			}
		}
	}
}
