package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
	"github.com/agbox/agbox/spec/feature"
	"github.com/agbox/agbox/spec/projections"
)

// defaultSpecFile is used when it is in the current folder.
const defaultSpecFile = "agbox.yaml"

// specOptions are the flags that describe a sandbox. They override the files.
type specOptions struct {
	file           string
	devcontainers  []string
	composes       []string
	composePrimary string
	profiles       []string

	image, build, platform, pull  string
	labels                        []string
	vars                          envFlags
	mounts, copies                []string
	workspace, mountWorkspace     string
	excludes                      []string
	useGitignore, tracked         *bool
	tools, ports                  []string
	tmpfs, volumes, services      []string
	cpus, memory, disk, gpus, shm string
	pids                          uint32
	ulimits                       []string
	user, workdir, hostname       string
	matchUser                     string
	entrypoint                    []string
	prepare, postCreate           []string
	idleTTL, idleAction, revival  string
	network                       string
	cleanupTTL                    string
	capAdd, capDrop, devices      []string
	privileged, newPrivileges     *bool
	seccompUnconfined, readOnly   *bool
	dangerousMounts               *bool
	writableConfig, allowHost     *bool
	// trust grants what the files request of the host, without a question.
	trust bool
	// hideMissing hides notices about what built-in tools do not find on this machine.
	hideMissing bool
	// quiet leaves out which file is used, and notices about flags.
	quiet bool
}

// addFlags adds the flags to a command.
func (o *specOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false // keep them grouped by topic
	text := func(p *string, name, short, usage string) { f.StringVarP(p, name, short, "", usage) }
	list := func(p *[]string, name, short, usage string) {
		f.StringArrayVarP(p, name, short, nil, usage+" (repeatable)")
	}
	flag := func(p **bool, name, usage string) { f.VarPF(boolFlag{p}, name, "", usage).NoOptDefVal = "true" }
	text(&o.file, "file", "f", "the sandbox `FILE`, instead of the "+defaultSpecFile+" in this folder; - is standard input")
	list(&o.devcontainers, "devcontainer", "", "a devcontainer.json `FILE` as a base; the sandbox file overrides it")
	list(&o.composes, "compose", "", "a compose `FILE` as a base, for its services; the sandbox file overrides it")
	text(&o.composePrimary, "compose-primary", "", "the `SERVICE` of the compose file that is the primary container")
	list(&o.profiles, "profile", "", "`NAME` of a profile of the compose file whose services are wanted, or * for all; instead of $COMPOSE_PROFILES")
	text(&o.image, "image", "", "`IMAGE` of the sandbox; pulled if missing")
	text(&o.build, "build", "", "build the image from `FOLDER`; or the YAML of a build in a sandbox file")
	text(&o.platform, "platform", "", "`PLATFORM` of the image, for example linux/arm64")
	text(&o.pull, "pull", "", "`WHEN` to pull: if_missing, always or never")
	list(&o.labels, "label", "", "`KEY=VALUE` to select the sandbox by")
	o.vars.add(f, "all commands")
	list(&o.mounts, "mount", "", "bind-mount `SOURCE:TARGET[:rw]`, read-only unless rw")
	list(&o.copies, "copy", "", "copy SOURCE into the sandbox, `SOURCE:TARGET`")
	text(&o.workspace, "workspace", "", "copy the project `DIR[:TARGET]` into the sandbox")
	text(&o.mountWorkspace, "mount-workspace", "", "bind-mount the project `DIR[:TARGET]`, writable")
	list(&o.excludes, "exclude", "", "`PATTERN` to exclude from the workspace, as in .gitignore; such files come home only with \"agbox apply --all\" or in commits, and \"agbox rm\" asks only about commits")
	flag(&o.useGitignore, "use-gitignore", "exclude from the workspace what its .gitignore files name")
	flag(&o.tracked, "tracked", "copy of the workspace only what git tracks, with its repository")
	list(&o.tools, "tool", "", "`NAME` of a built-in tool to add, for example git")
	list(&o.ports, "publish", "p", "publish a port, `[[ADDRESS:]PORT:]PORT`[/PROTOCOL]; default: a free port on 127.0.0.1")
	list(&o.tmpfs, "tmpfs", "", "a folder in memory, `TARGET[:SIZE]`")
	list(&o.volumes, "volume", "v", "a volume of the sandbox, `NAME:TARGET[:ro]`, or like --mount if it begins with a path")
	list(&o.services, "service", "", "a service, `NAME=IMAGE` or its YAML; required unless the YAML says otherwise")
	text(&o.cpus, "cpus", "", "`NUMBER` of processors, for example 1.5")
	text(&o.memory, "memory", "m", "`SIZE` of the memory, for example 4g, or unlimited (default: the daemon's setting, usually 80 % of the host's)")
	text(&o.disk, "disk", "", "`SIZE` limit of the container's own files, if the engine supports it")
	text(&o.gpus, "gpus", "", "`WHICH` GPUs: all, a number, or ids separated by commas")
	text(&o.shm, "shm-size", "", "`SIZE` of /dev/shm")
	f.Uint32Var(&o.pids, "pids-limit", 0, "`NUMBER` of processes and threads at most (default 4096)")
	list(&o.ulimits, "ulimit", "", "`NAME=SOFT[:HARD]`, for example nofile=1024")
	text(&o.user, "user", "u", "default `USER` of commands")
	text(&o.matchUser, "match-user", "", "give the user of commands the ids of the owner of the mounted folder at `PATH`")
	text(&o.workdir, "workdir", "w", "default working `DIR` of commands")
	text(&o.hostname, "hostname", "", "host `NAME` of the sandbox")
	f.VarP(wordsFlag{&o.entrypoint}, "entrypoint", "", "`PROGRAM [ARGS...]` to run COMMAND with, instead of the image's entrypoint; \"\" for none")
	list(&o.prepare, "prepare", "", "shell `COMMAND` to run once as root before files are copied in; a pool runs it ahead")
	list(&o.postCreate, "post-create", "", "shell `COMMAND` to run once before the sandbox is ready")
	text(&o.idleTTL, "idle-ttl", "", "stop the sandbox when no command has run for this `DURATION`, for example 2h; 0 means never")
	text(&o.idleAction, "idle-action", "", "`WHAT` to do after --idle-ttl: stop or remove (default stop)")
	text(&o.cleanupTTL, "cleanup-ttl", "", "delete the sandbox when it was stopped for this `DURATION`, for example 7d; 0 means never")
	text(&o.network, "network", "", "`WHAT` the sandbox reaches: open, or internal for its own services alone (default open)")
	text(&o.revival, "revival", "", "`WHAT` to do when the sandbox's container ends by itself: fail, revive or reap (default: the daemon's setting)")
	list(&o.capAdd, "cap-add", "", "`CAPABILITY` to add to the default ones, for example SYS_PTRACE")
	list(&o.capDrop, "cap-drop", "", "`CAPABILITY` to drop, or ALL")
	list(&o.devices, "device", "", "`PATH` of a host device to add, for example /dev/kvm")
	flag(&o.privileged, "privileged", "run privileged: no isolation from the host")
	flag(&o.newPrivileges, "allow-new-privileges", "let set-user-ID programs such as sudo gain privileges")
	flag(&o.seccompUnconfined, "seccomp-unconfined", "run without the seccomp filter")
	flag(&o.readOnly, "read-only", "mount the container's root read-only")
	flag(&o.dangerousMounts, "allow-dangerous-mounts", "allow mounts and copies that are otherwise refused, for example of the engine's socket")
	flag(&o.writableConfig, "writable-config", "let the sandbox change, in writable mounts, what this machine executes: hooks of git, settings of editors, sandbox files")
	flag(&o.allowHost, "allow-host", "let the sandbox reach the addresses of this machine, as host.docker.internal, and metadata addresses")
	f.BoolVar(&o.trust, "trust", false, "grant what the sandbox file requests of this machine, without asking")
	for name, words := range map[string][]string{
		"idle-action": document.EnumWords(agboxv1.IdleAction(0).Descriptor()),
		"pull":        document.EnumWords(agboxv1.PullPolicy(0).Descriptor()),
		"network":     document.EnumWords(agboxv1.NetworkMode(0).Descriptor()),
		"revival":     document.EnumWords(agboxv1.RevivalPolicy(0).Descriptor()),
		"tool":        projections.Names(),
	} {
		completeWords(cmd, name, words...)
	}
}

// sandboxRequest makes the request for a sandbox from files and flags.
func (o *specOptions) sandboxRequest(ctx context.Context, a *app, c *client.Client, name string, command []string) (*client.SpecInput, error) {
	spec, err := o.fields(a)
	if err != nil {
		return nil, err
	}
	spec.Name, spec.Command = name, command
	files := o.files(a)
	files.MayFetch = func(read *client.SpecInput, references []string) error {
		return o.agreeToFetch(ctx, a, c, read, references)
	}
	input, err := files.Load()
	if err != nil {
		return nil, err
	}
	req := input.Request
	if o.image == "" && o.build == "" && req.GetConfigYaml() == nil && len(req.GetBaseFiles()) == 0 {
		return nil, usagef("Name an image, for example with --image debian:12, or write a sandbox file: `agbox init` writes a starter.")
	}
	req.CreateSpec = spec
	// A stranger, or an agent in an earlier sandbox, may have written the files.
	req.UntrustedFiles = true
	return input, nil
}

// files are the sandbox file and the flags' own bases.
func (o *specOptions) files(a *app) client.SpecFiles {
	files := client.SpecFiles{File: o.file, LookupEnv: a.lookupEnv, Profiles: o.profiles, Refresh: o.pull == "always"}
	for _, name := range o.devcontainers {
		files.Bases = append(files.Bases, client.SpecBase{File: name, Format: agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER})
	}
	for _, name := range o.composes {
		files.Bases = append(files.Bases, client.SpecBase{File: name, Format: agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE, Primary: o.composePrimary})
	}
	if _, err := os.Stat(defaultSpecFile); o.file != "" || err != nil {
		return files
	}
	if flag := o.imageFlag(); flag != "" {
		o.note(a, "Ignoring the %s in this folder, because the image is given without it. -f %[1]s with %s uses both.", defaultSpecFile, flag)
		return files
	}
	o.note(a, "Using the %s in this folder.", defaultSpecFile)
	files.File = defaultSpecFile
	return files
}

// note says which file is used, unless that was said.
func (o *specOptions) note(a *app, format string, args ...any) {
	if !o.quiet {
		a.say(format, args...)
	}
}

// fields is the spec that the flags alone describe.
func (o *specOptions) fields(a *app) (*agboxv1.CreateSpec, error) {
	spec := &agboxv1.CreateSpec{
		Image: o.image, Platform: o.platform, BuiltinTools: o.tools, CpuLimit: o.cpus, MemoryLimit: o.memory,
		DiskLimit: o.disk, Gpus: o.gpus, ShmSize: o.shm, PidsLimit: o.pids, User: o.user, MatchUser: o.matchUser, WorkingDir: o.workdir,
		Hostname: o.hostname, Entrypoint: o.entrypoint, Prepare: o.prepare, PostCreate: o.postCreate,
	}
	var wrong []string
	keep := func(err error) {
		if err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	var err error
	spec.Labels, err = assignments("label", o.labels)
	keep(err)
	spec.Envs, spec.SecretEnvs, err = o.vars.read(a)
	keep(err)
	spec.Revival, err = enumFlag[agboxv1.RevivalPolicy]("revival", o.revival)
	keep(err)
	spec.Network, err = enumFlag[agboxv1.NetworkMode]("network", o.network)
	if err != nil {
		err = usagef("%v %s", err, noNetworks)
	}
	keep(err)
	spec.IdleAction, err = enumFlag[agboxv1.IdleAction]("idle-action", o.idleAction)
	keep(err)
	spec.PullPolicy, err = enumFlag[agboxv1.PullPolicy]("pull", o.pull)
	keep(err)
	if o.idleTTL != "" {
		ttl, err := document.ParseDuration(o.idleTTL)
		keep(flagError("idle-ttl", err))
		spec.IdleTtl = durationpb.New(ttl)
	}
	if o.cleanupTTL != "" {
		ttl, err := document.ParseDuration(o.cleanupTTL)
		keep(flagError("cleanup-ttl", err))
		spec.CleanupTtl = durationpb.New(ttl)
	}
	spec.Mounts = eachValue(keep, "mount", o.mounts, document.ParseMount)
	spec.Copies = eachValue(keep, "copy", o.copies, document.ParseCopy)
	spec.Tmpfs = eachValue(keep, "tmpfs", o.tmpfs, document.ParseTmpfs)
	a.volumeFlags(spec, o.volumes, o.quiet, keep)
	spec.Ulimits = eachValue(keep, "ulimit", o.ulimits, document.ParseUlimit)
	spec.Services = eachValue(keep, "service", o.services, serviceFlag)
	for _, ports := range eachValue(keep, "publish", o.ports, document.ParsePorts) {
		spec.Ports = append(spec.Ports, ports...)
	}
	for _, m := range spec.GetMounts() {
		m.Source = here(m.GetSource())
	}
	for _, c := range spec.GetCopies() {
		c.Source = here(c.GetSource())
	}
	spec.Workspace, err = o.workspaceFlag()
	keep(err)
	spec.Security = o.security()
	spec.Build, err = buildFlag(o.build)
	keep(err)
	if len(wrong) > 0 {
		return nil, usagef("%s", strings.Join(wrong, "\n"))
	}
	return spec, nil
}

// here makes a path from the command line absolute. It is relative to the current
// folder, not to that of the sandbox file. The daemon expands "~".
func here(path string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		return path
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func (o *specOptions) workspaceFlag() (*agboxv1.WorkspaceSpec, error) {
	if o.workspace != "" && o.mountWorkspace != "" {
		return nil, usagef("--workspace copies the project and --mount-workspace mounts it: give only one of them.")
	}
	text := o.workspace + o.mountWorkspace
	if text == "" {
		if len(o.excludes) > 0 || o.useGitignore != nil || o.tracked != nil {
			// These apply to the workspace of the file.
			return &agboxv1.WorkspaceSpec{ExcludePatterns: o.excludes, UseGitignore: o.useGitignore, Tracked: o.tracked}, nil
		}
		return nil, nil
	}
	// Set Mount for a copy too: it must override a file that mounts the workspace.
	w := &agboxv1.WorkspaceSpec{Mount: proto.Bool(o.mountWorkspace != ""), ExcludePatterns: o.excludes, UseGitignore: o.useGitignore, Tracked: o.tracked}
	text, w.Target = document.SplitWorkspace(text)
	w.Source = here(text)
	return w, nil
}

// security is nil if no security flag is given; the spec then has no security section.
func (o *specOptions) security() *agboxv1.SecuritySpec {
	s := &agboxv1.SecuritySpec{
		CapAdd: o.capAdd, CapDrop: o.capDrop, Devices: o.devices, Privileged: o.privileged, AllowNewPrivileges: o.newPrivileges,
		SeccompUnconfined: o.seccompUnconfined, ReadOnlyRoot: o.readOnly, AllowDangerousMounts: o.dangerousMounts, WritableConfig: o.writableConfig,
		AllowHost: o.allowHost,
	}
	if proto.Size(s) == 0 {
		return nil
	}
	return s
}

// serviceFlag reads NAME=IMAGE, or the YAML of a service in a sandbox file.
func serviceFlag(text string) (*agboxv1.ServiceSpec, error) {
	if name, image, ok := strings.Cut(text, "="); ok && !strings.ContainsAny(name, "{:\n ") {
		return &agboxv1.ServiceSpec{Name: name, Image: image, Required: proto.Bool(true)}, nil
	}
	service := new(agboxv1.ServiceSpec)
	if err := yamlFlag(text, service); err != nil {
		return nil, err
	}
	if service.Required == nil {
		service.Required = proto.Bool(true) // the default in a request is false
	}
	return service, nil
}

// resolved asks the daemon to resolve a request, prints its notices and problems, and
// fails if there are problems. The answer is nil if the daemon is too old for the call.
func (o *specOptions) resolved(ctx context.Context, a *app, c *client.Client, in *agboxv1.CreateSandboxRequest) (*agboxv1.ResolveSpecResponse, error) {
	out, err := c.ResolveSpec(ctx, in)
	switch {
	case hasCode(err, codes.Unimplemented):
		return nil, nil
	case err != nil:
		return nil, err
	}
	o.sayNotices(a, out)
	for _, p := range out.GetProblems() {
		a.say("%s", problemLine(p))
	}
	if len(out.GetProblems()) > 0 {
		return nil, errSpecTold
	}
	return out, nil
}

func (o *specOptions) sayNotices(a *app, out *agboxv1.ResolveSpecResponse) {
	for _, n := range out.GetNotices() {
		if !o.hideMissing || !strings.HasPrefix(n.GetField(), "builtin_tools[") {
			a.say("note: %s", problemLine(n))
		}
	}
}

// tellNotices prints the notices of a request that has no files to agree to. Its problems
// are those of the creation, which refuses it.
func (o *specOptions) tellNotices(ctx context.Context, a *app, c *client.Client, in *agboxv1.CreateSandboxRequest) {
	if out, err := c.ResolveSpec(ctx, in); err == nil && len(out.GetProblems()) == 0 {
		o.sayNotices(a, out)
	}
}

// problemLine formats a problem as FILE:LINE, which editors and terminals can open.
func problemLine(p *agboxv1.SpecProblem) string {
	return printable(document.Line(p))
}

// hasFiles reports whether a request contains files.
func hasFiles(in *agboxv1.CreateSandboxRequest) bool {
	return in.GetConfigYaml() != nil || len(in.GetBaseFiles()) > 0
}

// imageFlag is the flag that says what the image is; "" if none does.
func (o *specOptions) imageFlag() string {
	switch {
	case o.image != "":
		return "--image"
	case o.build != "":
		return "--build"
	}
	return ""
}

// buildFlag reads a folder, or the YAML of a build in a sandbox file.
func buildFlag(text string) (*agboxv1.BuildSpec, error) {
	if text == "" {
		return nil, nil
	}
	build := &agboxv1.BuildSpec{Context: text}
	if strings.HasPrefix(text, "{") {
		build = new(agboxv1.BuildSpec)
		if err := yamlFlag(text, build); err != nil {
			return nil, flagError("build", err)
		}
	}
	if build.GetContext() != "" {
		build.Context = here(build.GetContext())
	}
	return build, nil
}

// volumeFlags reads the values of --volume into the spec. As with Docker, a source that
// is a path is a bind mount; unlike there, it is read-only unless it says rw, and that is
// said, unless quiet is set.
func (a *app) volumeFlags(spec *agboxv1.CreateSpec, values []string, quiet bool, keep func(error)) {
	for _, value := range values {
		if !strings.HasPrefix(value, "/") && !strings.HasPrefix(value, ".") && !strings.HasPrefix(value, "~") {
			volume, err := document.ParseVolume(value)
			if err != nil {
				keep(flagError("volume", err))
				continue
			}
			spec.Volumes = append(spec.Volumes, volume)
			continue
		}
		mount, err := document.ParseMount(value)
		if err != nil {
			keep(flagError("volume", err))
			continue
		}
		if !quiet && !mount.GetWritable() && !strings.HasSuffix(value, ":ro") {
			a.say("%s is mounted read-only. Write %s:rw to make it writable, or :ro for no notice.", mount.GetSource(), value)
		}
		spec.Mounts = append(spec.Mounts, mount)
	}
}

// agreeToFetch makes sure that a person agrees to the first request to a registry. What a
// feature asks of the host is known only once it is here, and is asked about then.
func (o *specOptions) agreeToFetch(ctx context.Context, a *app, c *client.Client, read *client.SpecInput, references []string) error {
	if o.trust {
		return nil
	}
	if byPolicy, err := trustedByPolicy(ctx, c, read.Request.GetConfigDir()); byPolicy || err != nil {
		return err
	}
	q := trustQuestion{Path: read.Files[0].Path}
	for _, reference := range references {
		q.Requests = append(q.Requests, hostRequest{
			Text: fmt.Sprintf("%-9s %s, which is fetched from its registry first", "feature", reference), Dangerous: feature.Near(reference),
		})
	}
	if !a.canAsk(q) {
		text, _ := requestScreen(q, nil, extent{})
		a.sayEach(strings.TrimSuffix(text, "\n"))
		return usagef("Nothing is fetched for %s without your agreement. Run `agbox trust review %s` on a terminal, or give --trust.", printable(q.Path), shellWords([]string{q.Path}))
	}
	yes, err := a.ask(ctx, q, nil, "Fetch this? What it asks for is shown then.")
	if err == nil && !yes {
		err = toldError{errNotTrusted(q.Path)}
	}
	return err
}

// resolveQuietly returns what a request comes to, nil if it has problems, with the first of
// them. It is also nil if the daemon is too old to say.
func resolveQuietly(ctx context.Context, c *client.Client, in *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSpec, string, error) {
	out, err := c.ResolveSpec(ctx, in)
	if hasCode(err, codes.Unimplemented) {
		return nil, "", nil
	}
	problem := ""
	if all := out.GetProblems(); len(all) > 0 {
		problem = printable(all[0].GetMessage())
	}
	return out.GetCreateSpec(), problem, err
}
