package agents

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// flood is a program that does what no program should, until /tmp/enough is there.
const flood = `
import json, os, socket, threading
path, token = os.environ["AGBOX_AGENT_SOCKET"], os.environ["AGBOX_TOKEN"]
stop = lambda: os.path.exists("/tmp/enough")
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
workers = [
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
threads = [threading.Thread(target=w[0], args=w[1:]) for w in workers]
for t in threads: t.start()
print("up", flush=True)
for t in threads: t.join()
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
	spawn(t, in, `if [ $AGBOX_INCARNATION = 1 ]; then printf %s "$AGBOX_TOKEN" > /tmp/former; exit 1; fi
		exec python3 -c "$FLOOD"`, "hostile", "--in", "demo", "--may-spawn", "worker", "--retry-delay", "10ms", "--agent-env", "FLOOD="+flood)
	up(t, in, "hostile")
	id := spawn(t, in, `for n in 1 2 3 4 5; do
			child=$(agbox-agent spawn --class worker -- true) && agbox-agent wait $child | grep -q COMPLETED && agbox-agent usage $n $n || exit 90
		done; agbox-agent done complete`, "neighbour", "--in", "quiet", "--may-spawn", "worker")
	await(t, in, id, "COMPLETED")
	if out := in.Must(t, "exec", "demo", "--", "echo", "alive"); out != "alive" {
		t.Errorf("the sandbox answers %q", out)
	}
	in.Must(t, "exec", "demo", "--", "touch", "/tmp/enough")
	a := await(t, in, "hostile", "COMPLETED")
	if out := in.Must(t, "agent", "logs", "hostile"); strings.Contains(out, "answered") || a.GetCrashes() != 1 {
		t.Errorf("after %d crashes: %s", a.GetCrashes(), out)
	}
}
