package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/agbox/agbox/daemon"
	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/daemon/server"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

const (
	gib = 1 << 30

	// defaultExecLog is far more than builds write, but keeps a single command with
	// endless output from filling the disk.
	defaultExecLog = 1 * gib
	// defaultSandboxLog bounds the disk space for the output of a sandbox, however many
	// commands it runs. The database is on the same disk.
	defaultSandboxLog = 10 * gib
)

// settings are what an operator can set: as flags, or under the same names in the
// configuration file. Flags override the file.
type settings struct {
	cfg   daemon.Config
	level slog.Level
	cmd   *cobra.Command
	// policy is the path of the operator's policy; empty means hostfiles.PolicyPath.
	policy string
	// names are the names of the settings, in the order of their flags.
	names []string
	// from has the settings that are in the file.
	from map[string]bool
	// pools is what the file has of them; nil for nothing.
	pools *document.Node
}

// addSettings gives a command the flags of all settings.
func addSettings(cmd *cobra.Command) *settings {
	s := &settings{cmd: cmd, from: make(map[string]bool)}
	c := &s.cfg
	c.Revival = agboxv1.RevivalPolicy_REVIVAL_POLICY_FAIL
	c.ChildLifetime = agboxv1.AgentLifetime_AGENT_LIFETIME_HELD
	c.Resync, c.OrphanGrace = 10*time.Second, 10*time.Minute
	c.Retention.KeepDeleted, c.Retention.KeepExecs, c.Retention.KeepAgents = 24*time.Hour, 24*time.Hour, 24*time.Hour
	c.Retention.MaxAgents, c.Retention.MaxExecs, c.Retention.MaxEvents = 1000, 1000, 10000
	c.MaxExecLog, c.MaxSandboxLog = defaultExecLog, defaultSandboxLog
	c.MaxSandboxFiles = retention.DefaultFiles
	c.SandboxMemory.Percent = 80

	f := cmd.Flags()
	s.addEngine()
	s.add(rangesValue{&c.SubnetRanges, new(bool)}, "subnets", "address ranges for the networks of sandboxes, for example 10.222.0.0/16")
	s.add(wordValue[agboxv1.RevivalPolicy]{&c.Revival, policies}, "revival", "what to do when a sandbox's container exits by itself, unless the sandbox sets it: fail, revive or reap")
	s.add(wordValue[machine.PendingRecovery]{&c.PendingRecovery, recoveries}, "pending-recovery", "what to do after a crash or stop of the daemon with a sandbox that has no container yet: resume its creation, or fail")
	s.add(wordValue[agboxv1.AgentLifetime]{&c.ChildLifetime, lifetimes}, "child-lifetime", "how long an agent lives that another agent has spawned, unless the request or its stack says so: held by its parent, or detached")
	s.add(timeValue{&c.Resync, time.Millisecond}, "resync", "pause between two full scans of the engine")
	s.add(timeValue{&c.Retention.KeepDeleted, time.Second}, "keep-deleted", "how long the history and the logs of a deleted sandbox are kept")
	s.add(timeValue{&c.Retention.KeepExecs, time.Second}, "keep-execs", "how long a finished command of an existing sandbox and its logs are kept")
	s.add(timeValue{&c.Retention.KeepAgents, time.Second}, "keep-agents", "how long an agent that has ended and its history are kept")
	s.add(countValue{least: 1, to: &c.Retention.MaxAgents}, "max-agents", "how many agents that have ended are kept; the oldest are removed first")
	s.add(countValue{least: 1, to: &c.Retention.MaxExecs}, "max-execs", "how many finished commands of a sandbox are kept; the oldest are removed first")
	s.add(countValue{least: 1, to: &c.Retention.MaxEvents}, "max-events", "how many events of a sandbox are kept, and of an agent that has not ended; those of the oldest commands, and what no longer counts, are removed first")
	s.add(optionalTime{&c.Lifetimes.Idle}, "idle-ttl", "idle_ttl of sandboxes that do not set it; 0 means never (default: never, and 10m for clients of the published contract). Applies to new sandboxes")
	s.add(optionalTime{&c.Lifetimes.Cleanup}, "cleanup-ttl", "cleanup_ttl of sandboxes that do not set it: how long one is stopped before it is deleted; 0 means never (default: never, and 360h for clients of the published contract). Applies to new sandboxes")
	s.add(timeValue{&c.OrphanGrace, time.Second}, "orphan-grace", "how long to wait before removing a container or network of this install that belongs to no sandbox")
	s.add(sizeValue{&c.MaxExecLog}, "max-exec-log", "how many bytes of each output of a command are kept, unless the command sets it; more is dropped and counted. 0: no limit. Applies to new sandboxes")
	s.add(sizeValue{&c.MaxSandboxLog}, "max-sandbox-log", "how many bytes of output of all commands of a sandbox are kept, with its index of 32 bytes for each write. 0: no limit. Applies to new sandboxes")
	s.add(countValue{least: 1, to: &c.MaxSandboxFiles}, "max-sandbox-files", "how many files a sandbox may have in its folders for logs and socket, besides those of its commands. A sandbox with more, or with 256 MiB more than max-sandbox-log, is stopped. Applies to new sandboxes")
	s.add(memoryValue{&c.SandboxMemory}, "sandbox-memory", "memory of a container whose sandbox does not set it: a share of the host's memory, which always leaves 1 GiB to a host that has 2, a size such as 8g, or unlimited. Applies to new containers")
	s.add(countValue{to: &c.AutoPool, most: ledger.MaxPoolSize}, "auto-pool", "how many sandboxes are kept ready of what was created last, in the pool auto, until nobody has asked for one for an hour")
	s.add(wordValue[reconcile.FenceMode]{&c.HostFence, fences}, "host-fence", "rules that keep sandboxes from the addresses of the host: auto makes them if the daemon can, require fails sandboxes if it cannot, off makes none")
	f.StringVar(&s.policy, "policy", "", "path of the operator's policy, if it is not "+hostfiles.PolicyPath+"; only for a daemon of root")
	f.TextVar(&s.level, "log-level", slog.LevelInfo, "least important `level` that is logged: debug, info, warn or error")
	s.names = append(s.names, "policy", "log-level", poolSetting)
	return s
}

// add adds a setting.
func (s *settings) add(value pflag.Value, name, usage string) {
	s.cmd.Flags().Var(value, name, usage)
	s.names = append(s.names, name)
}

// addEngine adds the engine setting, which doctor has too.
func (s *settings) addEngine() {
	s.cmd.Flags().StringVar(&s.cfg.EngineHost, "engine", "", "address of the container engine (default: the one that has the containers of the install; before the first contact DOCKER_HOST, else the engine's own default)")
	s.names = append(s.names, "engine")
}

// load adds the settings of the configuration file and what a daemon gets from its
// process: paths, log, executable.
func (s *settings) load() (daemon.Config, error) {
	install, err := paths.FromEnv()
	if err != nil {
		return daemon.Config{}, err
	}
	log := stderrLog(install.DaemonLog()) // first, because also a start that fails writes to it
	if err := s.readFile(install.ConfigFile()); err != nil {
		return daemon.Config{}, err
	}
	if err := s.chooseEngine(install); err != nil {
		return daemon.Config{}, err
	}
	cfg := s.cfg
	if cfg.Policy, err = s.readPolicy(); err != nil {
		return daemon.Config{}, err
	}
	if cfg.HostFence, err = boundFence(cfg.HostFence, cfg.Policy); err != nil {
		return daemon.Config{}, err
	}
	cfg.Paths = install
	cfg.CheckDatabase = checkCommand
	cfg.Log = slog.New(limitRepeats(slog.NewTextHandler(log, &slog.HandlerOptions{Level: s.level})))
	return cfg, nil
}

// chooseEngine chooses the address of the engine, and says where it comes from. The
// environment counts only before the first contact with an engine: any shell may start the
// daemon again.
func (s *settings) chooseEngine(install paths.Install) error {
	c := &s.cfg
	stored, err := daemon.StoredEngine(install)
	switch {
	case c.EngineHost != "" && s.cmd.Flags().Changed("engine"):
		c.EngineFrom = "set by a flag"
	case c.EngineHost != "":
		c.EngineFrom = "set in " + install.ConfigFile()
	case err != nil:
		return err
	case stored != "":
		c.EngineHost, c.EngineFrom = stored, "stored in "+install.EngineAddress()
	default:
		c.EngineHost, c.EngineFrom = os.Getenv("DOCKER_HOST"), "taken from DOCKER_HOST"
		if c.EngineHost == "" {
			c.EngineFrom = "the default of Docker"
		}
	}
	return nil
}

// boundFence returns the mode of the fence under a policy. One that forbids access to the
// host requires the fence.
func boundFence(asked reconcile.FenceMode, bound *hostfiles.Policy) (reconcile.FenceMode, error) {
	switch {
	case bound.HostAccess:
		return asked, nil
	case asked == reconcile.FenceOff:
		return asked, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"The setting \"host-fence\" is off, which the operator's policy %s forbids with allow.host_access: set it to require.", bound.File)
	}
	return reconcile.FenceRequired, nil
}

// readPolicy reads the operator's policy. Only root may name another file than the usual
// one: a policy that its users could exchange would bind nobody.
func (s *settings) readPolicy() (*hostfiles.Policy, error) {
	if s.policy != "" && os.Geteuid() != 0 {
		return nil, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "The setting \"policy\" is only for a daemon that runs as root. Remove it: %s applies.", hostfiles.PolicyPath)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	return hostfiles.LoadPolicy(cmp.Or(s.policy, hostfiles.PolicyPath), home)
}

// fileError lists every problem of the configuration file.
type fileError struct {
	path string
	// problems are sentences; those about a line begin with its number.
	problems []string
}

func (e *fileError) Error() string {
	return fmt.Sprintf("The configuration file %s is not valid; correct it or remove it.\n  %s", e.path, strings.Join(e.problems, "\n  "))
}

// readFile reads the settings that no flag sets from the file, which may be missing. A
// file with any problem is refused as a whole: a daemon with settings that its operator
// does not expect is worse than one that does not start.
func (s *settings) readFile(path string) error {
	raw, err := readAll(path)
	if err != nil || raw == nil {
		return err
	}
	report := new(document.Report)
	if root := document.YAML(path, raw, report); root != nil {
		s.takeAll(root, path, report)
	}
	if len(report.Problems) == 0 {
		return nil
	}
	slices.SortStableFunc(report.Problems, func(a, b *agboxv1.SpecProblem) int { return cmp.Compare(a.GetLine(), b.GetLine()) })
	file := &fileError{path: path}
	for _, p := range report.Problems {
		file.problems = append(file.problems, fmt.Sprintf("Line %d: %s", p.GetLine(), p.GetMessage()))
	}
	return file
}

// takeAll reads every setting of the file and reports the problems.
func (s *settings) takeAll(root *document.Node, path string, report *document.Report) {
	if root.Kind == document.Null {
		return
	}
	if root.Kind != document.Map {
		report.Problem(&document.Origin{File: path, Line: root.Line, Column: root.Column},
			"The file must consist of settings, one per line, such as \"resync: 10s\"")
		return
	}
	for _, e := range root.Entries {
		if e.Key.Text == poolSetting && !s.from[poolSetting] {
			s.from[poolSetting] = true
			s.takePools(e.Value, path, report)
			continue
		}
		if problem := s.take(e.Key.Text, e.Value); problem != "" {
			report.Problem(&document.Origin{File: path, Line: e.Key.Line, Column: e.Key.Column}, "%s", problem)
		}
	}
}

// poolSetting is the only setting that no flag has: a map of sandbox files by the names of pools.
const poolSetting = "pool"

var poolName = regexp.MustCompile("^[a-z0-9][a-z0-9_.-]{0,62}$") // of SetPoolRequest.name

// takePools reads the pools of the file and reports the problems, but for those that more than the form of
// their fields shows: the pool shows these.
func (s *settings) takePools(pools *document.Node, path string, report *document.Report) {
	at := func(n *document.Node) *document.Origin {
		return &document.Origin{File: path, Line: n.Line, Column: n.Column}
	}
	if pools.Kind != document.Map || len(pools.Entries) > ledger.MaxPools {
		report.Problem(at(pools), "The setting %q needs a map of up to %d names, each with a size and the fields of a sandbox file, such as \"stack: {size: 2, image: debian}\".", poolSetting, ledger.MaxPools)
		return
	}
	s.pools = pools
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	for _, e := range pools.Entries {
		name := e.Key.Text
		switch {
		case !poolName.MatchString(name) || name == ledger.AutoPool:
			report.Problem(at(e.Key), "%q is no name for a pool: give up to 63 small letters, digits, \"_\", \".\" and \"-\", and not %q.", name, ledger.AutoPool)
			continue
		case e.Value.Kind != document.Map:
			report.Problem(at(e.Value), "The pool %q needs a size and the fields of a sandbox file, such as \"{size: 2, image: debian}\".", name)
			continue
		}
		template := server.PoolTemplate{Name: name, Size: 1, File: path, Home: home}
		sandbox := &document.Node{Kind: document.Map}
		for _, field := range e.Value.Entries {
			switch field.Key.Text {
			case "base":
				report.Problem(at(field.Key), "The pool %q cannot have a base: write what that has into its own fields.", name)
			case "size":
				if template.Size, err = strconv.Atoi(field.Value.Text); err != nil || template.Size < 1 || template.Size > ledger.MaxPoolSize {
					report.Problem(at(field.Value), "The size of the pool %q must be a number from 1 to %d.", name, ledger.MaxPoolSize)
				}
			default:
				sandbox.Entries = append(sandbox.Entries, field)
			}
		}
		reader := document.Reader{File: path, Report: report}
		reader.Message(sandbox, new(agboxv1.CreateSpec).ProtoReflect(), "")
		template.Config = document.Placed(sandbox)
		s.cfg.Pools = append(s.cfg.Pools, template)
	}
}

// withoutSecrets is a node that does not show the values of secret variables.
func withoutSecrets(n *document.Node) *document.Node {
	out := *n
	out.Items, out.Entries = slices.Clone(n.Items), slices.Clone(n.Entries)
	for i, item := range out.Items {
		out.Items[i] = withoutSecrets(item)
	}
	var marked []string
	if list := n.Get("secret_envs"); list != nil {
		for _, item := range list.Items {
			marked = append(marked, item.Text)
		}
	}
	for i, e := range out.Entries {
		out.Entries[i].Value = withoutSecrets(e.Value)
		if e.Key.Text != "envs" {
			continue
		}
		for j, v := range out.Entries[i].Value.Entries {
			if secrets.Is(v.Key.Text, marked) {
				out.Entries[i].Value.Entries[j].Value = &document.Node{Kind: document.String, Text: secrets.Placeholder}
			}
		}
	}
	return &out
}

// readAll reads the file; nil if there is none. It reads at most one byte more than
// allowed, which is enough to see that the file is too long.
func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fileError{path: path, problems: []string{fmt.Sprintf("It cannot be opened: %v.", err)}}
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, document.MaxBytes+1))
	if err != nil {
		return nil, &fileError{path: path, problems: []string{fmt.Sprintf("It cannot be read: %v.", err)}}
	}
	return raw, nil
}

// take sets one setting and returns its problem as a sentence; empty if there is none.
// Underscores in the name are allowed, as in the fields of a sandbox file.
func (s *settings) take(written string, value *document.Node) string {
	name := strings.ReplaceAll(written, "_", "-")
	if !slices.Contains(s.known(), name) {
		return fmt.Sprintf("There is no setting %q; the settings are %s.", written, strings.Join(s.known(), ", "))
	}
	if s.from[name] {
		return fmt.Sprintf("The setting %q is given twice; remove one.", name)
	}
	s.from[name] = true
	flag := s.cmd.Flags().Lookup(name)
	if flag == nil {
		return "" // doctor has a flag for only one setting
	}
	_, isList := flag.Value.(rangesValue)
	words, ok := scalars(value, isList)
	switch {
	case !ok && isList:
		return fmt.Sprintf("The setting %q needs a value or a list of values.", name)
	case !ok:
		return fmt.Sprintf("The setting %q needs one value.", name)
	case flag.Changed:
		// The flag overrides the file, but check the file's value too: without the flag it
		// is used next time.
		flag = addSettings(newScratch()).cmd.Flags().Lookup(name)
	}
	for _, word := range words {
		if err := flag.Value.Set(word); err != nil {
			return fmt.Sprintf("The setting %q is not valid: %v.", name, err)
		}
	}
	return ""
}

// scalars returns the words of a value: its items if list is set and it is a list.
func scalars(value *document.Node, list bool) ([]string, bool) {
	nodes := []*document.Node{value}
	if list && value.Kind == document.List {
		nodes = value.Items
	}
	words := make([]string, 0, len(nodes))
	for _, n := range nodes {
		switch n.Kind {
		case document.List, document.Map, document.Null:
			return nil, false
		}
		words = append(words, n.Text)
	}
	return words, len(words) > 0
}

// checkDatabase is a hidden command: the daemon checks its database in another
// process, because reading a truncated memory mapping kills the reader.
const checkDatabase = "check-database"

func checkCommand(path string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return exec.Command(self, checkDatabase, path)
}

// newScratch is a command that is never run; it only holds flags.
func newScratch() *cobra.Command { return &cobra.Command{Use: "scratch"} }

// known are the names of all settings. The file may set all of them, even if the
// command has flags for only some.
func (s *settings) known() []string { return addSettings(newScratch()).names }

// print writes all settings in the format of the configuration file.
func (s *settings) print(w io.Writer, file string) error {
	var b strings.Builder
	state := ""
	if len(s.from) == 0 {
		state = " (missing or empty)"
	}
	fmt.Fprintf(&b, "# %s%s\n", file, state)
	for _, name := range s.names {
		if name == poolSetting {
			continue
		}
		flag := s.cmd.Flags().Lookup(name)
		source := "default"
		switch {
		case flag.Changed:
			source = "flag"
		case s.from[name]:
			source = "file"
		case name == "engine":
			source = s.cfg.EngineFrom
		}
		text := flag.Value.String()
		if text == "" { // the engine or the adapter chooses; there is no value to print
			fmt.Fprintf(&b, "# %s: %s\n", name, source)
			continue
		}
		value, err := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Value: text})
		if list, ok := flag.Value.(rangesValue); ok {
			value, err = yaml.Marshal(list.list())
			text = "\n" + strings.TrimRight(string(value), "\n")
		} else {
			text = " " + strings.TrimRight(string(value), "\n")
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s:%s # %s\n", name, text, source)
	}
	if s.pools == nil {
		fmt.Fprintf(&b, "# %s: default\n", poolSetting)
	} else {
		key := &document.Node{Kind: document.String, Text: poolSetting}
		raw, err := document.WriteNode(&document.Node{Kind: document.Map, Entries: []document.Entry{{Key: key, Value: withoutSecrets(s.pools)}}})
		if err != nil {
			return err
		}
		b.Write(raw)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
