package agents

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// flood is a program that does what no program should, until /tmp/enough is there. It has a child
// that does so too.
const flood = `
import json, os, socket, threading
path, token = os.environ["AGBOX_AGENT_SOCKET"], os.environ["AGBOX_TOKEN"]
stop = lambda: os.path.exists("/tmp/over" if "MATE" in os.environ else "/tmp/enough")
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    return s, s.makefile("rb")
def repeat(count, make, want):
    s, f = connect()
    while not stop():
        s.sendall(b"".join(make(n) for n in range(count)))
        for n in range(count):
            got = json.loads(f.readline())
            code = got.get("error", {}).get("code")
            if code not in want:
                print("answered", got, flush=True)
                os._exit(90)
def line(**fields):
    return json.dumps(fields).encode() + b"\n"
def asks(op, **fields):
    return lambda n: line(op=op, token=token, **fields)
def huge():
    while not stop():
        s, f = connect()
        try:
            for n in range(16384):
                s.sendall(b"x" * 65536)
        except OSError:
            pass
def hangups():
    while not stop():
        s, f = connect()
        s.sendall(line(op="wait", token=token, agents=[]))
        s.close()
def say(**fields):
    s, f = connect()
    s.sendall(line(token=token, **fields))
    got = json.loads(f.readline())
    if not got["ok"]:
        print("answered", got, flush=True)
        os._exit(91)
    return got["result"]
def expect(**want):
    after = 0
    while not stop():
        for m in say(op="recv", after=after)["messages"]:
            after = m["seq"]
            if all(text in m[key] for key, text in want.items()):
                return
mate = [ # the child, which may spawn nothing
    (repeat, 50, asks("spawn", command=["true"], **{"class": "worker"}), ["SPAWN_NOT_ALLOWED"]),
    (repeat, 50, asks("kill", agent=os.environ["AGBOX_PARENT"]), ["AGENT_NOT_FOUND"]),
]
workers = [
    (repeat, 50, asks("spawn", command=["true"], **{"class": "worker"}), ["AGENT_LIMIT"]),
    (repeat, 50, asks("open", stream="agent:neighbour"), ["AGENT_NOT_FOUND"]),
    (repeat, 200, asks("hello"), [None]),
    (repeat, 50, asks("children"), [None]),
    (repeat, 50, asks("spawn", command=["true"], **{"class": "admin"}), ["SPAWN_NOT_ALLOWED"]),
    (repeat, 50, asks("spawn", command=["true"], mounts=[{"source": "/"}]), ["SPAWN_NOT_ALLOWED"]),
    (repeat, 50, asks("kill", agent="neighbour"), ["AGENT_NOT_FOUND"]),
    (repeat, 50, asks("kill", agent="init"), ["AGENT_NOT_FOUND"]),
    (repeat, 200, lambda n: line(op="children", token="forged"), ["WRONG_TOKEN"]),
    (repeat, 200, lambda n: line(op="children", token=open("/tmp/former").read()), ["WRONG_TOKEN"]),
    (repeat, 1, asks("spawn", command=["x" * 64000]), ["LINE_TOO_LONG", "REQUEST_TOO_LARGE", "SPAWN_NOT_ALLOWED"]),
    (huge,), (hangups,),
]
if "MATE" in os.environ:
    workers = mate
else:
    say(op="spawn", key="mate", command=["sh", "-c", 'exec python3 -c "$FLOOD"'], envs={"MATE": "yes"}, **{"class": "worker"})
    expect(kind="TEXT", text="up")
    say(op="send", to="neighbour", text="beyond the border")
    expect(kind="BOUNCE", text='There is no agent "neighbour"')
threads = [threading.Thread(target=w[0], args=w[1:]) for w in workers]
for t in threads: t.start()
print("up", flush=True)
if "MATE" in os.environ: say(op="send", to="parent", text="up")
for t in threads: t.join()
open("/tmp/over", "w").close() # only now does the child end
s, f = connect()
s.sendall(line(op="done", outcome="complete", token=token))
f.readline()
`

// TestAHostileProgramDisturbsNobody floods the agent socket. The first incarnation leaves its
// token to the second.
func TestAHostileProgramDisturbsNobody(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageLanguages)
	in.Create(t, "quiet", harness.ImageBusybox)
	id := neighbour(t, in)
	spawnSpec(t, in, `if [ $AGBOX_INCARNATION = 1 ]; then printf %s "$AGBOX_TOKEN" > /tmp/former; exit 1; fi
		exec python3 -c "$FLOOD"`, &agboxv1.AgentSpec{
		Name: "hostile", Envs: map[string]string{"FLOOD": flood}, Stack: &agboxv1.AgentStack{Name: "den"},
		MaySpawn: &agboxv1.AgentMaySpawn{Classes: []string{"worker"}, Children: 1},
		Retry:    &agboxv1.AgentRetry{Delays: []*durationpb.Duration{durationpb.New(10 * time.Millisecond)}},
	})
	up(t, in, "hostile")
	mate := in.Must(t, "agent", "ls", "-q", "--parent", "hostile")
	in.Must(t, "exec", "quiet", "--", "touch", "/tmp/go")
	await(t, in, id, "COMPLETED")
	if out := in.Must(t, "exec", "demo", "--", "echo", "alive"); out != "alive" {
		t.Errorf("the sandbox answers %q", out)
	}
	in.Must(t, "exec", "demo", "--", "touch", "/tmp/enough")
	a := await(t, in, "hostile", "COMPLETED")
	await(t, in, mate, "COMPLETED")
	if out := in.Must(t, "agent", "logs", mate); out != "up" {
		t.Errorf("the child %s: %s", mate, out)
	}
	if out := in.Must(t, "agent", "logs", "hostile"); strings.Contains(out, "answered") || a.GetCrashes() != 1 {
		t.Errorf("after %d crashes: %s", a.GetCrashes(), out)
	}
}

// neighbour spawns an agent in another sandbox that works with children as soon as it may.
func neighbour(t *testing.T, in *harness.Install) string {
	t.Helper()
	return spawn(t, in, `until [ -e /tmp/go ]; do sleep 0.05; done
		for n in 1 2 3 4 5; do
			child=$(agbox-agent spawn --class worker -- true) && agbox-agent wait $child | grep -q COMPLETED && agbox-agent usage $n $n || exit 90
		done; agbox-agent done complete`, "neighbour", "--in", "quiet", "--may-spawn", "worker")
}
