package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// pool returns the pool with a name.
func (in *install) pool(t *testing.T, name string) *agboxv1.Pool {
	t.Helper()
	list := decode(t, in.Must(t, "pool", "ls", "-o", "json"), func() *agboxv1.Pool { return new(agboxv1.Pool) })
	for _, p := range list {
		if p.GetName() == name {
			return p
		}
	}
	t.Fatalf("there is no pool %s in %v", name, list)
	return nil
}

// setPool makes a pool of one sandbox and waits until it is ready.
func (in *install) setPool(t *testing.T, name string, args ...string) {
	t.Helper()
	in.Must(t, append([]string{"pool", "set", name, "--size", "1"}, args...)...)
	if p := in.pool(t, name); p.GetReady()+p.GetComing() != 1 {
		t.Errorf("it does not say that one is coming: %v", p)
	}
	in.awaitPool(t, name)
}

func (in *install) awaitPool(t *testing.T, name string) {
	t.Helper()
	harness.Eventually(t, "the pool is full", func() bool {
		p := in.pool(t, name)
		if p.GetTrouble() != "" {
			t.Fatalf("the pool is in trouble: %v", p)
		}
		return p.GetReady() == p.GetSize() && p.GetComing() == 0
	})
}

// ahead returns the ids of the sandboxes that the engine has and that nobody sees.
func (in *install) ahead(t *testing.T) (members []string) {
	t.Helper()
	seen := strings.Fields(in.Must(t, "ls", "-qa"))
	for _, c := range in.Inventory(t).Containers {
		if c.Role == runtime.RolePrimary && !slices.Contains(seen, c.SandboxID) {
			members = append(members, c.SandboxID)
		}
	}
	return members
}

// selfPortrait is a script for any shell that prints what a process sees of its sandbox, in sections. It reads
// files, because images have few programs in common.
const selfPortrait = `
section() { echo "=== $1"; }
section id; id; pwd; umask; ulimit -a
section env; env | sort
section secret; printf %s "$HUSH" | md5sum
section hostname; hostname; cat /proc/sys/kernel/hostname
section hosts; cat /etc/hostname /etc/hosts /etc/resolv.conf
section mounts; cut -d' ' -f3-6,9- /proc/self/mountinfo
section supervisor; tr '\0' '\n' </proc/1/cmdline; tr '\0' '\n' </proc/1/environ | sort; grep -E '^(Umask|Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/1/status; cat /proc/1/limits
section status; grep -E '^(Umask|Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Sig...:)' /proc/self/status; cat /proc/self/limits /proc/self/oom_score_adj; ls /proc/self/fd
section root; stat -c '%A %u:%g %F %n' / /* /workdir/* /workdir/.* 2>&1
section limits; cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.shares 2>&1
section network; cut -d: -f1 /proc/net/dev; cut -f1-11 /proc/net/route; ip addr 2>&1
`

// portraitOfAll prints what is there, which setup commands may be changing while the main command looks.
const portraitOfAll = `
section processes; for p in /proc/[0-9]*; do tr '\0\n' '  ' <$p/cmdline | cut -c1-40; echo; done
section agbox; find /.agbox /run /tmp /home /root /var/log -exec stat -c '%A %u:%g %h %F %n' '{}' ';' 2>&1
section created; cat /tmp/created 2>&1
section files; for f in /copied /workspace; do find $f -type f -exec stat -c '%A %u:%g %h %s %n' '{}' ';' -exec cat '{}' ';'; done 2>&1
`

const portraitEnd = `section end
`

// variable are the parts of what is printed that differ between any two sandboxes.
var variable = []struct {
	is *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`[0-9a-f]{64}(-init)?`), "<digest>"},
	{regexp.MustCompile(`/overlay2/l/[0-9A-Z]{26}`), "<layer>"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT[0-9:.]+Z`), "<time>"},
	{regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`), "<mac>"},
	{regexp.MustCompile(`\b(10|172|192)\.\d+\.\d+\.\d+\b`), "<address>"},
	{regexp.MustCompile(`\t[0-9A-F]{8}\t[0-9A-F]{8}\t`), "\t<route>\t"},
	{regexp.MustCompile(`(eth\d+)@if\d+`), "$1"},
	{regexp.MustCompile(`(?m)^\d+: `), "N: "},
	{regexp.MustCompile(`(?m)^0:\d+ `), "0:N "},
	{regexp.MustCompile(`(?m)^(Uid:\t|Max file locks|file locks |locks ).*`), "$1"},
	{regexp.MustCompile(`fe80::[0-9a-f:]+`), "<address>"},
}

// normal replaces what differs between any two sandboxes.
func normal(text string, names *strings.Replacer) string {
	text = names.Replace(text)
	for _, v := range variable {
		text = v.is.ReplaceAllString(text, v.as)
	}
	return text
}

// sections splits what a portrait printed.
func sections(t *testing.T, of, text string, into map[string]string) {
	t.Helper()
	if !strings.HasSuffix(text, "=== end\n") {
		t.Fatalf("the portrait of %s is not complete:\n%s", of, harness.Clip(text))
	}
	for _, part := range strings.Split("\n"+text, "\n=== ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		into[of+" "+name] = body
	}
}

// fields are those of JSON that differ between any two sandboxes. All others are compared.
var fields = map[string]bool{
	"event_id": true, "sequence": true, "position": true, "last_event_sequence": true, "nonce": true, "supervisor_boot_id": true,
	"exec_id": true, "host_port": true, "user_time": true, "system_time": true, "peak_memory_bytes": true,
	// It is counted now and then.
	"host_folders": true,
	// Measured.
	"cpu_percent": true, "cpu_nanos": true, "memory_bytes": true, "net_received_bytes": true, "net_sent_bytes": true,
	"block_read_bytes": true, "block_written_bytes": true, "pids": true,
	// Output has ids in it.
	"stdout_bytes": true,
}

// plain replaces the values of such fields.
func plain(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if value[key] = plain(inner); fields[key] {
				value[key] = "<any>"
			}
		}
	case []any:
		for i := range value {
			value[i] = plain(value[i])
		}
	}
	return value
}

// shown runs a command that prints JSON, one value or one per line, and returns it indented without what differs
// between any two sandboxes.
func (in *install) shown(t *testing.T, args ...string) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(in.Must(t, args...)))
	var out []string
	for dec.More() {
		var value any
		if err := dec.Decode(&value); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		if event, ok := value.(map[string]any); ok && event["event_type"] == "SANDBOX_PREPARING" {
			continue // how far a step is that a hit has behind it
		}
		text, err := json.MarshalIndent(plain(value), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(text))
	}
	return strings.Join(out, "\n")
}

// seen returns all that is seen of the sandbox demo, from inside and from outside.
func (in *install) seen(t *testing.T, box, script string, main bool) map[string]string {
	t.Helper()
	all := make(map[string]string)
	if main {
		in.Start(t, "logs", "-f", "demo/main").AwaitOutput(t, "=== end\n")
		harness.Eventually(t, "the main command does nothing more", func() bool {
			return strings.Contains(in.Must(t, "top", "demo"), "sleep 1000000")
		})
		sections(t, "main command:", in.Agbox(t, "logs", "demo/main").Want(t, 0).Stdout, all)
	}
	sections(t, "exec:", in.inside(t, "demo", selfPortrait+portraitOfAll+script+portraitEnd), all)
	for _, args := range [][]string{
		{"inspect", "-o", "json", "demo"},
		{"ls", "-a", "-o", "json"},
		{"ps", "-a", "-o", "json"},
		{"events", "-o", "json", "demo"},
		{"stats", "--no-stream", "-o", "json", "demo"},
		{"port", "-o", "json", "demo"},
		{"diff", "demo", "--stat"},
	} {
		name := "agbox " + strings.Join(args, " ")
		if args[0] == "diff" {
			r := in.Agbox(t, args...)
			all[name] = fmt.Sprintf("%d\n%s%s", r.Code, r.Stdout, r.Stderr)
			continue
		}
		all[name] = in.shown(t, args...)
	}
	for _, service := range []string{"web", "db"} {
		r := in.Agbox(t, "logs", "demo", "--service", service)
		all["logs of service "+service] = fmt.Sprintf("%d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	names := []string{box, "<sandbox>", in.Home, "<home>"}
	for _, e := range in.execs(t, "-a", "demo") {
		if !e.GetMain() {
			names = append(names, e.GetExecId(), "<exec>")
		}
	}
	for name, text := range all {
		lines := strings.Split(normal(text, strings.NewReplacer(names...)), "\n")
		if slices.Contains([]string{"mounts", "agbox", "processes"}, name[strings.LastIndex(name, " ")+1:]) {
			slices.Sort(lines)
		}
		all[name] = strings.Join(lines, "\n")
	}
	return all
}

// wantAlike compares what is seen of two sandboxes line by line.
func wantAlike(t *testing.T, when string, hit, cold map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(cold)) {
		if hit[name] == cold[name] {
			continue
		}
		had, has := strings.Split(cold[name], "\n"), strings.Split(hit[name], "\n")
		var lines []string
		for _, line := range had {
			if !slices.Contains(has, line) {
				lines = append(lines, "cold: "+line)
			}
		}
		for _, line := range has {
			if !slices.Contains(had, line) {
				lines = append(lines, " hit: "+line)
			}
		}
		t.Errorf("%s, %s differs (%d lines cold, %d of a hit):\n%s", when, name, len(had), len(has), strings.Join(lines, "\n"))
	}
}

func TestAHitDiffersFromAColdCreateInNothingButItsAge(t *testing.T) {
	t.Parallel()
	files := newInstall(t).write(t, "files", map[string]string{"a": "one\n", "sub/b": "two\n", ".gitignore": "x\n"})
	service := func(name, more string) string {
		return fmt.Sprintf(`{name: %s, image: %s, command: [sh, -c, "mkdir -p /www; hostname >/www/name; echo started; exec httpd -f -p 80 -h /www"]%s}`, name, harness.ImageBusybox, more)
	}
	healthy := `, healthcheck: {test: [CMD, wget, -q, -O, /dev/null, "http://127.0.0.1/name"], interval: 0.5s, timeout: 5s, retries: 60}`
	for _, c := range []struct {
		name string
		// pool describes both the pool and what is created, ahead only the pool, own only what is created.
		pool, ahead, own []string
		// script prints more from inside.
		script string
		// main means a main command that makes a portrait of its own.
		main bool
		// ordinary means that the daemon is not root's.
		ordinary bool
		// prepared means that it has events from before somebody had it, which are not shown then.
		prepared bool
		// renamed means that it is created under another name.
		renamed bool
	}{
		{
			name: "all that comes later", main: true,
			own: []string{
				"--label", "team=red", "--label", "a=b", "--idle-ttl", "2h", "--cleanup-ttl", "3h", "--revival", "revive", "-u", "nobody", "-w", "/tmp",
				"-e", "A=1", "-e", "PATH=/x:/bin:/usr/bin:/usr/sbin:/sbin", "-e", "GODEBUG=x=1", "--secret-env", "HUSH=quiet", "--copy", files + ":/copied",
				"--post-create", "{ env | sort; id; pwd; hostname; cat /etc/hosts /copied/a; } >/tmp/created", "--post-create", "echo two; echo three >&2",
			},
		},
		{name: "variables that agbox sets too", own: []string{"-e", "HOSTNAME=mine", "-e", "HOME=/x", "-e", "HOST_UID=7", "-e", "IMAGE_ENV=mine", "--entrypoint", "env X=1"}, main: true},
		{
			name: "another environment than that of the pool, and another name", main: true, renamed: true,
			ahead: []string{"-e", "LEFT=over", "--secret-env", "HUSH=old", "--label", "left=over", "--post-create", "touch /left", "-u", "nobody", "-w", "/tmp", "--workspace", files},
			own:   []string{"-e", "A=1"},
		},
		{name: "daemon of an ordinary user", pool: []string{"--hostname", "other"}, own: []string{"-e", "A=1"}, main: true, ordinary: true},
		{name: "folders in the home", pool: []string{"--image", harness.ImageUser}, own: []string{"--workspace", files + ":~/w", "--copy", files + ":~/c"}, main: true},
		{name: "image with a shell of its own", pool: []string{"--image", harness.ImageDebian}, own: []string{"--workspace", files}, main: true},
		{name: "entrypoint of the image", pool: []string{"--image", harness.ImageEntrypoint}},
		{
			name: "services", main: true, script: "section services; wget -q -O - http://web/name; wget -q -O - http://db/name\n",
			pool: []string{"--service", service("web", healthy), "--service", service("db", ", depends_on: [{name: web, condition: DEPENDENCY_CONDITION_HEALTHY}]")},
			own:  []string{"--post-create", "wget -q -O /tmp/created http://web/name"},
		},
		{
			name: "limits, read-only", main: true,
			pool: []string{
				"-m", "200m", "--cpus", "1.5", "--pids-limit", "300", "--ulimit", "nofile=1000:2000", "--shm-size", "10m", "--cap-drop", "CHOWN",
				"--read-only", "--tmpfs", "/tmp", "--network", "internal", "--hostname", "other",
			},
		},
		{
			name: "commands of prepare", main: true, prepared: true, script: "section prepared; cat /prepared /web\n",
			pool: []string{"-e", "A=1", "--secret-env", "HUSH=quiet", "--service", service("web", healthy), "--prepare", "wget -q -O - http://web/name >/web", "--prepare", "{ env | grep -v HOSTNAME | sort; id; pwd; } >/prepared", "--prepare", "echo $HUSH; echo two >>/prepared; chown -R nobody /tmp"},
			own:  []string{"-u", "nobody", "-w", "/tmp", "--workspace", files, "--label", "a=b", "--post-create", "cat /prepared >/tmp/created"},
		},
		{name: "volumes and ports", pool: []string{"-p", "80", "--tmpfs", "/t:1m", "-v", "data:/data"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := append([]string{"--image", harness.ImageBusybox}, c.pool...)
			if slices.Contains(c.pool, "--image") {
				pool = c.pool
			}
			args := slices.Concat([]string{"create", "demo"}, pool, c.own)
			if c.renamed {
				args[1] = "early"
			}
			if c.main {
				args = append(args, "--", "sh", "-c", selfPortrait+portraitEnd+"exec sleep 1000000")
			}
			var who account
			if c.ordinary {
				who = ordinaryUser(t)
			}
			warm, cold := newInstall(t, as(who)), newInstall(t, as(who))
			warm.setPool(t, "stock", slices.Concat(pool, c.ahead)...)
			member := warm.ahead(t)
			hit := warm.Must(t, args...)
			if p := warm.pool(t, "stock"); p.GetHits() != 1 || p.GetMisses() != 0 || !slices.Contains(member, hit) {
				t.Fatalf("created %s where %s was ready, and the pool is %v", hit, member, p)
			}
			other := cold.Must(t, args...)
			compare := func(when string) {
				t.Helper()
				is, was := warm.seen(t, hit, c.script, c.main), cold.seen(t, other, c.script, c.main)
				if c.prepared {
					was["agbox events -o json demo"] = is["agbox events -o json demo"]
				}
				wantAlike(t, when, is, was)
			}
			if c.renamed {
				for _, in := range []*install{warm, cold} {
					in.Must(t, "rename", "early", "demo")
				}
			}
			compare("at first")
			for _, in := range []*install{warm, cold} {
				in.Must(t, "stop", "demo")
				in.Must(t, "start", "demo")
			}
			compare("after another start")
			for _, in := range []*install{warm, cold} {
				in.KillDaemon(t)
				in.Must(t, "daemon", "start")
			}
			compare("after the death of the daemon")
		})
	}
}

// Only root can change the host name of a container that runs, and not with a read-only root.
func TestWhereTheHostNameCannotChangeANamedSandboxIsANewOne(t *testing.T) {
	for _, c := range []struct {
		name string
		who  account
		args []string
	}{
		{"daemon of an ordinary user", ordinaryUser(t), nil},
		{"read-only root", account{}, []string{"--read-only"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := newInstall(t, as(c.who))
			in.setPool(t, "stock", append([]string{"--image", harness.ImageBusybox}, c.args...)...)
			in.Create(t, "demo", harness.ImageBusybox, c.args...)
			harness.WantSame(t, "its host name", in.inside(t, "demo", "hostname; cat /etc/hostname"), "demo\ndemo\n")
			if p := in.pool(t, "stock"); p.GetHits() != 0 || p.GetMisses() != 1 || !strings.Contains(p.GetTrouble(), "set hostname") {
				t.Errorf("the pool is %v, want one miss, and what to do about it", p)
			}
		})
	}
}

func TestNobodySeesWhatAPoolHasReady(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "mine", harness.ImageBusybox)
	follower := in.Start(t, "events", "-f", "-o", "json")
	follower.AwaitOutput(t, "SANDBOX_READY")
	in.setPool(t, "stock", "--image", harness.ImageBusybox)
	members := in.ahead(t)
	if len(members) != 1 {
		t.Fatalf("the engine has %v for a pool of one", members)
	}
	member := members[0]
	in.Must(t, "events") // it ends although what is newest is not shown
	in.Must(t, "rename", "mine", "renamed")
	follower.AwaitOutput(t, "RENAMED")
	follower.Signal(t, 2)
	events := follower.Wait(t).Stdout

	hidden := func(what, text string) {
		t.Helper()
		if strings.Contains(text, member) {
			t.Errorf("%s shows what nobody has: %s", what, harness.Clip(text))
		}
	}
	hidden("events -f", events)
	for _, args := range [][]string{
		{"ls", "-a"}, {"ls", "-qa"}, {"ls", "-a", "-o", "json"}, {"ps", "-a"}, {"ps", "-a", "-o", "json"}, {"stats", "--no-stream"},
		{"stats", "--no-stream", "-o", "json"}, {"events"}, {"events", "-o", "json"}, {"pool", "ls"}, {"pool", "ls", "-o", "json"},
		{"daemon", "status", "-o", "json"}, {"image", "ls", "-o", "json"}, {"__complete", "exec", ""}, {"__complete", "inspect", member[:4]},
	} {
		hidden(strings.Join(args, " "), in.Agbox(t, args...).Want(t, 0).Stdout)
	}
	for _, f := range in.doctor(t, 0) {
		if f.Action != "leave" || f.NeedsPerson {
			t.Errorf("doctor complains: %+v", f)
		}
	}

	file := filepath.Join(in.write(t, "stuff", map[string]string{"file": "text\n"}), "file")
	for _, args := range [][]string{
		{"inspect", "MEMBER"}, {"exec", "MEMBER", "--", "touch", "/spoilt"}, {"exec", "-d", "MEMBER", "--", "touch", "/spoilt"}, {"shell", "MEMBER"},
		{"cp", file, "MEMBER:/spoilt"}, {"cp", "MEMBER:/etc/hostname", file + ".out"}, {"logs", "MEMBER"}, {"logs", "--sandbox", "MEMBER"},
		{"events", "MEMBER"}, {"ps", "MEMBER"}, {"top", "MEMBER"}, {"port", "MEMBER"}, {"stats", "--no-stream", "MEMBER"},
		{"diff", "MEMBER"}, {"apply", "MEMBER"}, {"pull", "MEMBER"}, {"wait", "MEMBER/main"}, {"kill", "MEMBER/main"}, {"attach", "MEMBER"},
		{"rename", "MEMBER", "spoilt"}, {"stop", "MEMBER"}, {"start", "MEMBER"}, {"restart", "MEMBER"}, {"rm", "MEMBER"},
		{"create", "other", "--id", "MEMBER", "--image", harness.ImageBusybox},
	} {
		want := 3
		switch args[0] {
		case "exec", "shell", "attach":
			want = 125
		case "create":
			want = 4
		}
		in.awaitPool(t, "stock")
		now := in.ahead(t)[0] // another one if what was before has spoilt the last one
		command := strings.Split(strings.ReplaceAll(strings.Join(args, "\n"), "MEMBER", now), "\n")
		if r := in.Agbox(t, command...); r.Code != want {
			t.Errorf("%s: exit code %d, want %d: %s%s", strings.Join(args, " "), r.Code, want, harness.Clip(r.Stdout), r.Stderr)
		}
		if left := in.ahead(t); !slices.Contains(left, now) {
			t.Errorf("%s: %s is not ready any more, but %v", strings.Join(args, " "), now, left)
		}
	}
	in.Must(t, "rm", "-f", in.ahead(t)[0])
	if got := in.Must(t, "rm", "-f", "--all"); got != box {
		t.Errorf("rm --all removes %q, want %s", got, box)
	}
	in.Must(t, "prune", "-f")
	if got := in.Must(t, "stop", "--all"); got != "" {
		t.Errorf("stop --all stops %q", got)
	}
	in.awaitPool(t, "stock")
	if left := in.ahead(t); !slices.Equal(left, members) {
		t.Errorf("%v is ready after all that, want %v", left, members)
	}
	created := in.Create(t, "demo", harness.ImageBusybox)
	if created != member {
		t.Errorf("%s is handed out, want %s", created, member)
	}
	harness.WantSame(t, "what is spoilt in it", in.inside(t, "demo", "ls /spoilt 2>&1; hostname"), "ls: /spoilt: No such file or directory\ndemo\n")
	if text := in.Must(t, "events", "-o", "json"); !strings.Contains(text, member) {
		t.Errorf("events have nothing of the sandbox that is handed out: %s", harness.Clip(text))
	}
	for line := range strings.Lines(in.Must(t, "events", "-o", "json", "demo")) {
		if strings.Contains(line, `"pool":"`) && !strings.Contains(line, `"pool":""`) {
			t.Errorf("the events of the sandbox tell of its pool: %s", line)
		}
	}
}

// TestWhatWasCreatedLastIsReadyAgain: with auto-pool, a stack of services that was made once is there the next time.
func TestWhatWasCreatedLastIsReadyAgain(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.write(t, "config", map[string]string{"agboxd.yaml": "auto-pool: 1\n"})
	db := fmt.Sprintf("{name: db, image: %s, command: [sleep, '1000000']}", harness.ImageBusybox)
	in.Create(t, "one", harness.ImageBusybox, "--service", db)
	in.awaitPool(t, "auto")
	member := in.ahead(t)
	if two := in.Create(t, "two", harness.ImageBusybox, "--service", db, "-e", "A=1"); !slices.Contains(member, two) {
		t.Errorf("the second one is %s, and ready was %v", two, member)
	}
	in.Create(t, "three", harness.ImageBusybox, "--hostname", "other")
	harness.Eventually(t, "what was created last takes the place", func() bool {
		p := in.pool(t, "auto")
		return p.GetSpec().GetHostname() == "other" && p.GetReady() == 1 && len(in.ahead(t)) == 1
	})
	if p := in.pool(t, "auto"); p.GetHits() != 1 || p.GetMisses() != 0 {
		t.Errorf("the pool is %v", p)
	}
	refused(t, in.Agbox(t, "pool", "set", "auto", "--image", harness.ImageBusybox), 2, "auto-pool")
	refused(t, in.Agbox(t, "pool", "set", "p", "--size", "0", "--image", harness.ImageBusybox), 2, "size")
	refused(t, in.Agbox(t, "pool", "set", "p", "--image", harness.ImageBusybox, "-p", "8080:80"), 2, "port")
	refused(t, in.Agbox(t, "pool", "set", "p", "--image", harness.ImageBusybox, "--mount-workspace", t.TempDir()), 2, "mounted")
	refused(t, in.Agbox(t, "pool", "rm", "nosuch"), 3, "pool ls")
}

func TestWhatADaemonWithOtherSettingsMadeIsNotHandedOut(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.setPool(t, "stock", "--image", harness.ImageBusybox)
	member := in.ahead(t)
	in.Must(t, "daemon", "stop")
	in.write(t, "config", map[string]string{"agboxd.yaml": "sandbox-memory: 300m\n"})
	in.Must(t, "daemon", "start")
	if id := in.Create(t, "demo", harness.ImageBusybox); slices.Contains(member, id) {
		t.Errorf("%s was made by the daemon of before", id)
	}
	if limit := in.inside(t, "demo", "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; true"); !strings.Contains(limit, "314572800") {
		t.Errorf("its memory is limited to %q", limit)
	}
	harness.Eventually(t, "others take the place of those", func() bool {
		left := in.ahead(t)
		return len(left) == 1 && !slices.Contains(member, left[0]) && in.pool(t, "stock").GetReady() == 1
	})
}

// TestPoolsOfTheConfiguration: they are there when the daemon is, only change there, and say what keeps them away.
func TestPoolsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	configure := func(pools string) {
		t.Helper()
		in.Must(t, "daemon", "stop")
		in.write(t, "config", map[string]string{"agboxd.yaml": pools})
		in.Must(t, "daemon", "start")
	}
	t.Cleanup(func() { configure("auto-pool: 0\n") })
	in.setPool(t, "own", "--image", harness.ImageBusybox, "--hostname", "own")
	configure("pool:\n  stock: {image: " + harness.ImageBusybox + "}\n  bad: {image: " + harness.ImageBusybox + ", ports: ['80:80']}\n")
	in.awaitPool(t, "stock")
	member := in.ahead(t)
	if id := in.Create(t, "demo", harness.ImageBusybox, "-e", "A=1"); !slices.Contains(member, id) {
		t.Errorf("the sandbox is %s, and ready was %v", id, member)
	}
	harness.Eventually(t, "what keeps the other one away", func() bool {
		p := in.pool(t, "bad")
		return p.GetConfigured() && strings.Contains(p.GetTrouble(), "port")
	})
	refused(t, in.Agbox(t, "pool", "set", "stock", "--image", harness.ImageBusybox), 4, "agboxd.yaml")
	refused(t, in.Agbox(t, "pool", "rm", "stock"), 4, "agboxd.yaml")
	in.awaitPool(t, "stock")
	before := in.ahead(t)
	in.KillDaemon(t)
	in.awaitPool(t, "stock")
	harness.WantSame(t, "what is ready after a kill", fmt.Sprint(in.ahead(t)), fmt.Sprint(before))
	configure("auto-pool: 0\n")
	harness.Eventually(t, "the pool leaves with the configuration, and no other", func() bool {
		list := strings.Fields(in.Must(t, "pool", "ls", "--format", "{{.name}}"))
		return slices.Equal(list, []string{"own"}) && len(in.ahead(t)) == 1
	})
	in.Must(t, "pool", "rm", "own")
}

// TestWhatAPoolPreparesIsThere: it is done once, also if the daemon is killed meanwhile, and before anybody gets it. Who
// has another environment gets a sandbox of their own. What fails says where its output is.
func TestWhatAPoolPreparesIsThere(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	args := []string{"--image", harness.ImageBusybox, "-e", "A=1", "--prepare", "echo $A >>/prepared; sleep 3; echo end >>/prepared"}
	in.Must(t, slices.Concat([]string{"pool", "set", "stock"}, args)...)
	harness.Eventually(t, "it is being prepared", func() bool {
		for _, id := range in.ahead(t) {
			out, _ := exec.CommandContext(harness.Bounded(t), "docker", "top", runtime.PrimaryName(id)).Output()
			return strings.Contains(string(out), "echo end")
		}
		return false
	})
	in.KillDaemon(t)
	in.awaitPool(t, "stock")
	member := in.ahead(t)
	if id := in.Must(t, slices.Concat([]string{"create", "demo"}, args, []string{"--label", "a=b"})...); !slices.Contains(member, id) {
		t.Errorf("the sandbox is %s, and ready was %v", id, member)
	}
	harness.WantSame(t, "what was prepared", in.inside(t, "demo", "cat /prepared"), "1\nend\n")
	in.awaitPool(t, "stock")
	member = in.ahead(t)
	other := slices.Clone(args)
	other[3] = "A=2"
	if id := in.Must(t, slices.Concat([]string{"create", "other"}, other)...); slices.Contains(member, id) {
		t.Errorf("%s was prepared with another environment", id)
	}
	if p := in.pool(t, "stock"); p.GetMisses() != 1 || !strings.Contains(p.GetTrouble(), "another environment") || p.GetReady() != 1 {
		t.Errorf("after a request with another environment the pool is %v", p)
	}
	harness.WantSame(t, "what was prepared with another environment", in.inside(t, "other", "cat /prepared"), "2\nend\n")
	in.Must(t, "pool", "set", "bad", "--image", harness.ImageBusybox, "--prepare", "true", "--prepare", "echo not today; exit 3")
	var trouble string
	harness.Eventually(t, "the pool says what has failed", func() bool {
		trouble = in.pool(t, "bad").GetTrouble()
		return strings.Contains(trouble, "Command 2 of prepare failed with exit code 3")
	})
	harness.WantSame(t, "its output", in.Must(t, "logs", trouble[strings.LastIndex(trouble, " ")+1:]), "not today")
	if r := in.Agbox(t, "create", "none", "--image", harness.ImageBusybox, "--prepare", "exit 4").Want(t, 1); !strings.Contains(r.Stderr, "Command 1 of prepare failed with exit code 4") {
		t.Errorf("without a pool: %s", r.Stderr)
	}
}

// What was prepared is gone with the container in which it was, or in which it was done.
func TestWhatHasEndedSinceItWasPreparedIsNotHandedOut(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	web := fmt.Sprintf("{name: web, image: %s, command: [sleep, '1000000']}", harness.ImageBusybox)
	args := []string{"--image", harness.ImageBusybox, "--service", web, "--prepare", "echo done >/prepared"}
	in.Must(t, slices.Concat([]string{"pool", "set", "stock"}, args)...)
	for name, container := range map[string]func(string) string{
		"primary": runtime.PrimaryName, "service": func(id string) string { return runtime.ServiceName(id, "web") },
	} {
		in.awaitPool(t, "stock")
		member := in.ahead(t)
		if out, err := exec.CommandContext(harness.Bounded(t), "docker", "restart", "-t", "0", container(member[0])).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if id := in.Must(t, slices.Concat([]string{"create", name}, args)...); slices.Contains(member, id) {
			t.Errorf("%s was handed out after its %s had ended", id, name)
		}
	}
	harness.Eventually(t, "the pool is well again", func() bool {
		p := in.pool(t, "stock")
		return p.GetReady() == 1 && p.GetTrouble() == "" && len(in.ahead(t)) == 1
	})
}
