package e2e

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// web is a service that serves its name on port 80, and is healthy once it does.
const web = `
  - name: web
    image: agbox-test/busybox:latest
    command: [sh, -c, "mkdir -p /www; hostname >/www/name; echo started; exec httpd -f -p 80 -h /www"]
    healthcheck:
      test: [CMD, wget, -q, -O, /dev/null, "http://127.0.0.1/name"]
      interval: 0.5s
      timeout: 5s
      retries: 60
    post_start_on_primary: ["wget -q -O - http://web/name >>/tmp/hooked"]
`

// begin accepts a sandbox from a file. It starts the daemon if necessary.
func (in *install) begin(t *testing.T, text string) (c *client.Client, id string) {
	t.Helper()
	in.Must(t, "daemon", "start")
	c = in.Client(t)
	box, err := c.CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("name: demo\n" + text)})
	if err != nil {
		t.Fatal(err)
	}
	return c, box.GetSandboxId()
}

// createFrom makes a sandbox from a file and waits until it is READY.
func (in *install) createFrom(t *testing.T, text string) string {
	t.Helper()
	c, id := in.begin(t, text)
	if _, err := c.WaitReady(harness.Bounded(t), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// container returns the container of a service from the engine.
func (in *install) container(t *testing.T, service string) runtime.Container {
	t.Helper()
	for _, c := range in.Inventory(t).Containers {
		if c.Role == runtime.RoleService && c.Service == service {
			return c
		}
	}
	t.Fatalf("the engine has no container of service %s", service)
	return runtime.Container{}
}

// kill ends a container as "docker kill" does.
func kill(t *testing.T, id string) {
	t.Helper()
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), id, "KILL"); err != nil {
		t.Fatal(err)
	}
}

// awaitService reads the events of a sandbox after a sequence, up to one of a service.
func awaitService(t *testing.T, c *client.Client, box string, after uint64, service string, typ agboxv1.EventType) *agboxv1.SandboxEvent {
	t.Helper()
	for event, err := range c.Events(harness.Bounded(t), box, after) {
		if err != nil {
			t.Fatalf("waiting for %s of %s: %v", typ, service, err)
		}
		if event.GetEventType() == typ && event.GetService().GetName() == service {
			return event
		}
	}
	t.Fatalf("the events ended without %s of %s", typ, service)
	return nil
}

const (
	serviceStarted = agboxv1.EventType_SANDBOX_SERVICE_STARTED
	serviceReady   = agboxv1.EventType_SANDBOX_SERVICE_READY
	serviceFailed  = agboxv1.EventType_SANDBOX_SERVICE_FAILED
)

func (in *install) serviceStates(t *testing.T, box string) string {
	t.Helper()
	var words []string
	for _, s := range in.inspect(t, box).GetSandbox().GetServiceStatus() {
		words = append(words, s.GetName()+" "+strings.ToLower(strings.TrimPrefix(s.GetState().String(), "SERVICE_STATE_")))
	}
	return strings.Join(words, ", ")
}

func TestServicesAreUpBeforeTheirSandboxAndLastAsLong(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	id := in.createFrom(t, `
image: agbox-test/busybox:latest
post_create: ["wget -q -O - http://web/name >/tmp/created", "echo two >>/tmp/created"]
volumes: [{name: shared, target: /shared}]
services:`+web+`
  - name: second
    image: agbox-test/busybox:latest
    command: [sh, -c, "wget -q -O /shared/web http://web/name && exec sleep 1000000"]
    depends_on: [{name: web, condition: DEPENDENCY_CONDITION_HEALTHY}]
    volumes: [{name: shared, target: /shared}]
  - name: extra
    image: 127.0.0.1:1/no-such-image-here:latest
    required: false
`)
	harness.WantSame(t, "what post_create wrote", in.Must(t, "exec", "demo", "--", "cat", "/tmp/created"), "web\ntwo")
	harness.WantSame(t, "what the hook wrote", in.Must(t, "exec", "demo", "--", "cat", "/tmp/hooked"), "web")
	harness.WantSame(t, "what the second service wrote", in.Must(t, "exec", "demo", "--", "sh", "-c",
		"until [ -s /shared/web ]; do sleep 0.05; done; cat /shared/web"), "web")
	c := in.Client(t)
	if ev := awaitService(t, c, id, 0, "extra", serviceFailed); ev.GetService().GetErrorCode() == "" {
		t.Errorf("the optional service failed without a reason: %v", ev)
	}
	box := in.inspect(t, "demo").GetSandbox()
	if box.GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY || box.GetDegraded() {
		t.Errorf("with a bad optional service the sandbox is %s, degraded %v: %s", box.GetState(), box.GetDegraded(), box.GetDegradedReason())
	}
	harness.WantSame(t, "services", in.serviceStates(t, "demo"), "web ready, second ready, extra failed")
	if table := in.Must(t, "ls"); !strings.Contains(table, "2/3 ready (extra failed)") {
		t.Errorf("ls shows\n%s", table)
	}
	harness.WantSame(t, "the log of the service", in.Must(t, "logs", "--sandbox", "demo", "--service", "web"), "started")

	in.Must(t, "stop", "demo")
	if got := in.container(t, "web").State; got != runtime.StateExited {
		t.Errorf("the service of a stopped sandbox is %s", got)
	}
	harness.WantSame(t, "services of a stopped sandbox", in.serviceStates(t, "demo"), "web waiting, second waiting, extra failed")
	in.Must(t, "start", "demo")
	harness.WantSame(t, "the hook, run again", in.Must(t, "exec", "demo", "--", "cat", "/tmp/hooked"), "web\nweb")
	harness.WantSame(t, "post_create, not run again", in.Must(t, "exec", "demo", "--", "cat", "/tmp/created"), "web\ntwo")
	if n := len(in.Inventory(t).Volumes); n != 1 {
		t.Errorf("there are %d volumes, want the shared one", n)
	}
	in.Must(t, "rm", "--wait", "-f", "demo")
	if inv := in.Inventory(t); !inv.Empty() {
		t.Errorf("left behind: %+v", inv)
	}
}

func TestAServiceThatDiesIsShownAndComesBack(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	// Not healthy until the primary allows it, so that the test can examine it.
	held := strings.Replace(web, `[CMD, wget, -q, -O, /dev/null, "http://127.0.0.1/name"]`,
		`[CMD-SHELL, "test ! -e /held/back && wget -q -O /dev/null http://127.0.0.1/name"]`, 1) + "    volumes: [{name: held, target: /held}]\n"
	id := in.createFrom(t, "image: agbox-test/busybox:latest\nvolumes: [{name: held, target: /held}]\nservices:"+held)
	c := in.Client(t)

	before := in.inspect(t, id).GetSandbox().GetLastEventSequence()
	in.Must(t, "exec", "demo", "--", "touch", "/held/back")
	kill(t, in.container(t, "web").ID)
	failed := awaitService(t, c, id, before, "web", serviceFailed)
	if d := failed.GetService(); d.GetErrorCode() != "SERVICE_EXITED" || !strings.Contains(d.GetErrorMessage(), "started") {
		t.Errorf("the event says %v; want SERVICE_EXITED and the last output", d)
	}
	if box := in.inspect(t, id).GetSandbox(); !box.GetDegraded() || !strings.Contains(box.GetDegradedReason(), "web") {
		t.Errorf("degraded %v, reason %q", box.GetDegraded(), box.GetDegradedReason())
	}
	in.Must(t, "exec", "demo", "--", "rm", "/held/back")
	awaitService(t, c, id, failed.GetSequence(), "web", serviceReady)
	if box := in.inspect(t, id).GetSandbox(); box.GetDegraded() || box.GetState() != agboxv1.SandboxState_SANDBOX_STATE_READY {
		t.Errorf("back again, the sandbox is %v: %s", box.GetState(), box.GetDegradedReason())
	}
	harness.WantSame(t, "the hook of both starts", in.Must(t, "exec", "demo", "--", "cat", "/tmp/hooked"), "web\nweb")

	// A container that was removed is made again.
	before = in.inspect(t, id).GetSandbox().GetLastEventSequence()
	gone := in.container(t, "web").ID
	if err := harness.DockerAPI.ContainerRemove(harness.Bounded(t), gone, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	awaitService(t, c, id, before, "web", serviceReady)
	if again := in.container(t, "web"); again.ID == gone {
		t.Error("the container has the same id")
	}
	harness.WantSame(t, "web", in.Must(t, "exec", "demo", "--", "wget", "-q", "-O", "-", "http://web/name"), "web")
}

func TestServicesAndHooksSurviveAKilledDaemon(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	id := in.createFrom(t, "image: agbox-test/busybox:latest\nservices:"+web)
	service := in.container(t, "web").ID
	in.KillDaemon(t)
	kill(t, service)
	in.Must(t, "daemon", "start")
	c := in.Client(t)
	failed := awaitService(t, c, id, 0, "web", serviceFailed)
	awaitService(t, c, id, failed.GetSequence(), "web", serviceReady)
	harness.WantSame(t, "the hook of both starts", in.Must(t, "exec", "demo", "--", "cat", "/tmp/hooked"), "web\nweb")
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	harness.WantSame(t, "services", in.serviceStates(t, id), "web ready")
	harness.WantSame(t, "web", in.Must(t, "exec", "demo", "--", "wget", "-q", "-O", "-", "http://web/name"), "web")
	harness.WantSame(t, "the hook, not run again", in.Must(t, "exec", "demo", "--", "cat", "/tmp/hooked"), "web\nweb")
}

func TestAHookThatRunsWhileTheDaemonIsKilledRunsOnce(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	c, _ := in.begin(t, `
image: agbox-test/busybox:latest
post_create:
  - "echo one >>/tmp/ran; while [ ! -e /tmp/go ]; do usleep 10000; done"
  - "echo two >>/tmp/ran"
`)
	box, hook := firstHook(t, c)
	p := in.primary(t, box)
	in.KillDaemon(t)
	if err := os.WriteFile(filepath.Join("/proc", strconv.Itoa(p.Pid), "root/tmp/go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "start")
	awaitState(t, in.Client(t), box, agboxv1.SandboxState_SANDBOX_STATE_READY)
	harness.WantSame(t, "the commands that ran", in.Must(t, "exec", box, "--", "cat", "/tmp/ran"), "one\ntwo")
	if got := in.inspectExec(t, hook); got.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || got.GetExitCode() != 0 {
		t.Errorf("the hook is shown as %v", got)
	}
}

// firstHook waits for the first hook of a sandbox.
func firstHook(t *testing.T, c *client.Client) (box, exec string) {
	t.Helper()
	for ev, err := range c.WatchEvents(harness.Bounded(t), client.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e := ev.GetEvent(); e.GetExec().GetHook() != nil {
			return e.GetSandboxId(), e.GetExec().GetExecId()
		}
	}
	t.Fatal("the events ended")
	return "", ""
}

func TestACommandOfPostCreateThatAStopHasEndedRunsOnceMore(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	c, _ := in.begin(t, `
image: agbox-test/busybox:latest
post_create:
  - "echo one >>/tmp/ran"
  - "echo two >>/tmp/ran; if [ ! -e /tmp/again ]; then touch /tmp/again; sleep 1000; fi"
`)
	box, _ := firstHook(t, c)
	p := in.primary(t, box)
	harness.Eventually(t, "the second command has begun", func() bool {
		_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(p.Pid), "root/tmp/again"))
		return err == nil
	})
	in.Must(t, "stop", box)
	in.Must(t, "start", box)
	harness.WantSame(t, "the commands that ran", in.Must(t, "exec", box, "--", "cat", "/tmp/ran"), "one\ntwo\ntwo")
}

func TestWhatCannotComeUpFailsWithAReasonAndLeavesNothing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	const head = "image: agbox-test/busybox:latest\n"
	const sleeper = "services:\n  - name: db\n    image: agbox-test/busybox:latest\n"
	for name, c := range map[string]struct {
		spec string
		says []string
	}{
		// Without a healthcheck it would also count as well if it ran slightly longer.
		"a service that ends": {head + sleeper + `    command: [sh, -c, "echo no disk left; exit 3"]
    healthcheck: {test: [CMD, "false"], interval: 1h}`, []string{"db", "code 3", "no disk left"}},
		"a service whose command is missing": {head + sleeper + `    command: [no-such-program]`,
			[]string{"db", "no-such-program"}},
		"a service that is never healthy": {head + sleeper + `    command: [sh, -c, "echo no config found; touch /tmp/said; exec sleep 1000"]
    healthcheck: {test: [CMD-SHELL, "while [ ! -e /tmp/said ]; do sleep 0.05; done; echo not well; false"], interval: 0.2s, retries: 2}`, []string{"db", "unhealthy", "not well", "no config found"}},
		"a hook that fails": {head + sleeper + `    command: [sleep, "1000"]
    post_start_on_primary: ["exit 4"]`, []string{"db", "exit code 4", "agbox logs"}},
		"a command of post_create that fails": {head + `post_create: ["true", "exit 5"]`, []string{"Command 2 of post_create", "exit code 5"}},
		"a hook without a shell":              {"image: agbox-test/scratch:latest\n" + `post_create: ["true"]`, []string{"no shell"}},
	} {
		cl, id := in.begin(t, c.spec)
		_, err := cl.WaitReady(harness.Bounded(t), id)
		if err == nil || slices.ContainsFunc(c.says, func(word string) bool { return !strings.Contains(err.Error(), word) }) {
			t.Errorf("%s: %v; want it to say %q", name, err, c.says)
		}
		harness.EventuallyOr(t, func() bool { return in.Inventory(t).Empty() },
			func() { t.Fatalf("%s: left behind: %+v", name, in.Inventory(t)) })
		in.Must(t, "rm", "-f", id)
	}
}

// databases is a sandbox with two real servers, whose hooks record each run.
const databases = `
image: agbox-test/postgres:latest
command: [sleep, "1000000000"]
services:
  - name: redis
    image: agbox-test/redis:latest
    post_start_on_primary: ["redis-cli -h redis incr runs"]
    volumes: [{name: redis, target: /data}]
  - name: postgres
    image: agbox-test/postgres:latest
    healthcheck: {test: [CMD, pg_isready, -h, postgres, -U, postgres], interval: 0.5s, timeout: 5s, retries: 100}
    volumes: [{name: postgres, target: /pgdata}]
    depends_on: [{name: redis}]
    post_start_on_primary:
      - psql -h postgres -U postgres -c "create table if not exists runs (at timestamptz default now())"
      - psql -h postgres -U postgres -c "insert into runs default values"
`

func TestRealDatabasesServeTheirSandboxAcrossFaults(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	id := in.createFrom(t, databases)
	c := in.Client(t)
	wantRuns := func(when, redis, postgres string) {
		t.Helper()
		harness.WantSame(t, "services "+when, in.serviceStates(t, id), "redis ready, postgres ready")
		for _, s := range in.inspect(t, id).GetContainers() {
			if s.GetRole() == "service" && s.GetHealth() != runtime.Healthy {
				t.Errorf("%s service %s is %q", when, s.GetService(), s.GetHealth())
			}
		}
		harness.WantSame(t, "redis "+when, in.Must(t, "exec", id, "--", "redis-cli", "-h", "redis", "get", "runs"), redis)
		harness.WantSame(t, "postgres "+when, in.Must(t, "exec", id, "--", "psql", "-h", "postgres", "-U", "postgres", "-Atc", "select count(*) from runs"), postgres)
	}
	wantRuns("at first", "1", "1")

	for _, service := range []string{"redis", "postgres"} {
		before := in.inspect(t, id).GetSandbox().GetLastEventSequence()
		kill(t, in.container(t, service).ID)
		failed := awaitService(t, c, id, before, service, serviceFailed)
		awaitService(t, c, id, failed.GetSequence(), service, serviceReady)
	}
	wantRuns("after both were killed", "2", "2")

	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	wantRuns("after the daemon was killed", "2", "2")
	in.Must(t, "stop", id)
	in.Must(t, "start", id)
	wantRuns("after stop and start", "3", "3")
}

// A one-shot service: others start once it has ended with code 0, whatever becomes of the
// daemon meanwhile. It runs again when the sandbox starts again.
func TestOthersStartOnceAOneShotServiceHasEnded(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"compose.yaml": `
services:
  migrate:
    image: ` + harness.ImageBusybox + `
    command: ["sh", "-c", "echo ran >>/out/ran; until test -e /out/go; do sleep 0.1; done; exit $$(cat /out/go)"]
    volumes: ["out:/out"]
  app:
    image: ` + harness.ImageBusybox + `
    command: ["sleep", "infinity"]
    depends_on: {migrate: {condition: service_completed_successfully}}
  web:
    image: ` + harness.ImageBusybox + `
    x-agbox: primary
    volumes: ["out:/out"]
    depends_on: {migrate: {condition: service_completed_successfully}}
volumes: {out: {}}
`})
	in.Must(t, "daemon", "start")
	c := in.Client(t)
	input, err := client.SpecFiles{Bases: []client.SpecBase{{File: filepath.Join(dir, "compose.yaml")}}}.Request()
	if err != nil {
		t.Fatal(err)
	}
	input.CreateSpec = &agboxv1.CreateSpec{Name: "demo"}
	box, err := c.CreateSandbox(harness.Bounded(t), input)
	if err != nil {
		t.Fatal(err)
	}
	id := box.GetSandboxId()
	begun := awaitService(t, c, id, 0, "migrate", serviceStarted)
	if state := in.container(t, "app").State; state != runtime.StateCreated {
		t.Errorf("app is %s before migrate has ended", state)
	}
	harness.Eventually(t, "the start of migrate", func() bool { return in.container(t, "migrate").State == runtime.StateRunning })
	name := runtime.ServiceName(id, "migrate")
	// It ends while no daemon lives.
	in.KillDaemon(t)
	var ends bytes.Buffer
	w := tar.NewWriter(&ends)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "go", Mode: 0o666, Size: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("0\n")); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	if err := harness.DockerAPI.CopyToContainer(harness.Bounded(t), name, "/out", &ends, container.CopyToContainerOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the end of migrate", func() bool {
		c, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), name)
		return err == nil && !c.State.Running
	})
	in.Must(t, "daemon", "start")
	c = in.Client(t)
	if _, err := c.WaitReady(harness.Bounded(t), id); err != nil {
		t.Fatal(err)
	}
	awaitService(t, c, id, begun.GetSequence(), "app", serviceStarted)
	harness.WantSame(t, "the runs", in.inside(t, "demo", "cat /out/ran"), "ran\n")
	harness.WantSame(t, "the services", in.serviceStates(t, "demo"), "migrate ready, app ready")
	if h := in.inspect(t, "demo").GetSandbox(); h.GetDegraded() || h.GetServiceStatus()[0].GetStarts() != 1 {
		t.Errorf("a sandbox whose migration has ended: %v", h)
	}
	in.inside(t, "demo", "echo 3 >/out/go")
	in.Must(t, "stop", "demo")
	failed := in.Agbox(t, "start", "demo").Want(t, 1)
	if !strings.Contains(failed.Stderr, "Service migrate exited with code 3, and must end with code 0.") {
		t.Errorf("a migration that fails: %s", failed.Stderr)
	}
	if s := in.inspect(t, "demo").GetSandbox().GetServiceStatus()[0]; s.GetStarts() != 2 {
		t.Errorf("a migration that failed was started %d times", s.GetStarts())
	}
}
