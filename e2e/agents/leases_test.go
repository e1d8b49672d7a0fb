package agents

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAnOlderAgentWaitsAndAYoungerOneDies(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	older := spawn(t, in, gated+`pass 1
		agbox-agent acquire file:/a || exit 90
		agbox-agent acquire file:/a service:db; [ $? = 10 ] || exit 91
		agbox-agent acquire --wait file:/a service:db || exit 92
		pass 3; agbox-agent done complete`, "older", "--in", "demo")
	younger := spawn(t, in, gated+`agbox-agent acquire service:db x || exit 90
		pass 2; agbox-agent acquire --shared file:/a; [ $? = 11 ] || exit 91
		agbox-agent acquire --wait --shared file:/a || exit 92
		agbox-agent release && agbox-agent done complete`, "younger", "--in", "demo")
	leases := func(id string, n int) {
		t.Helper()
		until(t, in, id, fmt.Sprintf("it holds %d", n), func(a *agboxv1.Agent) bool { return len(a.GetLeases()) == n })
	}
	leases(younger, 2)
	open(t, in, box, 1)
	until(t, in, older, "the older waits", func(a *agboxv1.Agent) bool {
		return a.GetWord() == "PAUSED" && a.GetMessage() == "It waits for younger, which holds service:db." && len(a.GetLeases()) == 1
	})
	in.KillDaemon(t)
	if out := in.Must(t, "agent", "leases", "older"); !regexp.MustCompile(`(?m)^file:/a +exclusive +older +GRANTED +\d+ +- +sandbox demo$`).MatchString(out) ||
		!regexp.MustCompile(`(?m)^service:db +exclusive +older +WAIT +- +younger +sandbox demo$`).MatchString(out) {
		t.Errorf("the leases are\n%s", out)
	}
	in.Must(t, "agent", "leases", "younger", "--break", "x")
	if r := in.Agbox(t, "agent", "leases", "younger", "--break", "x"); r.Code == 0 || !strings.Contains(r.Stderr, `does not hold "x"`) {
		t.Errorf("a lease that nobody holds was broken: %d, %s", r.Code, r.Stderr)
	}
	leases(younger, 1)
	open(t, in, box, 2)
	leases(older, 2)
	leases(younger, 0)
	open(t, in, box, 3)
	await(t, in, older, "COMPLETED")
	await(t, in, younger, "COMPLETED")
	told := in.Agbox(t, "agent", "logs", older).Want(t, 0).Stderr
	if !regexp.MustCompile(`"held_meanwhile":\[\{"resource":"service:db","times":0,"fence":\d+,"holders":\[\{"agent_id":"` + younger + `","name":"younger","times":0,"fence":\d+\}\]\}\]`).MatchString(told) {
		t.Errorf("the older is told\n%s", told)
	}
}

// TestAnAncestorInTheWayOfADescendantIsTold has a parent wait for messages while its child
// needs what it holds.
func TestAnAncestorInTheWayOfADescendantIsTold(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `set -e
		agbox-agent acquire db
		child=$(agbox-agent spawn --name kid --class worker -- sh -c "agbox-agent acquire --wait db && agbox-agent done complete")
		agbox-agent recv
		agbox-agent release db
		agbox-agent wait "$child"
		agbox-agent done complete`, "--in", "demo", "--may-spawn", "worker")
	await(t, in, id, "COMPLETED")
	out := in.Must(t, "agent", "logs", id)
	if want := `Agent kid is PAUSED because of what you hold or wait for. It needs db.`; !strings.Contains(out, want) || !strings.Contains(out, `"kind":"CHILD"`) {
		t.Errorf("the parent got %s; want %q", out, want)
	}
}

func TestTheResourcesOfTheDocumentationAreHeldAndReleased(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, "set -e; "+snippets(t)["acquire"]+"agbox-agent acquire x >/dev/null; agbox-agent phase PLANNING; agbox-agent done complete", "fixer", "--in", "demo")
	await(t, in, id, "COMPLETED")
	out := in.Must(t, "agent", "logs", id)
	if !strings.Contains(out, "file:/workspace/main.go\texclusive\t") || !strings.Contains(out, "service:db\tshared\t") {
		t.Errorf("it holds %q", out)
	}
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, MANIFEST, GRANTED, RELEASED, MANIFEST, GRANTED, PHASE, RELEASED, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
}

// schedule works with up to three of six resources at a time, some of them shared, and asks
// for more while it holds some. Whoever works with a resource at the same time as somebody
// who must not fails it.
const schedule = `
x=/tmp/exclusive; s=/tmp/shared; mkdir -p $x; for r in 1 2 3 4 5 6; do mkdir -p $s/$r; done
me=$AGBOX_AGENT; RANDOM=$SEED; n=0
some() { for i in 1 2 3; do [ $((RANDOM % 2)) = 0 ] || echo "$((RANDOM % 6 + 1)):$((RANDOM % 2))"; done; echo "$((RANDOM % 6 + 1)):1"; }
args() { for c in "$@"; do [ ${c#*:} = 1 ] && echo --exclusive || echo --shared; echo r${c%:*}; done; }
work() {
	for c in $(uniq_of "$@"); do r=${c%:*}
		if [ ${c#*:} = 1 ]; then mkdir $x/$r || exit 91; [ -z "$(ls $s/$r)" ] || exit 92
		else touch $s/$r/$me; [ ! -e $x/$r ] || exit 93; fi
	done
	for c in $(uniq_of "$@"); do r=${c%:*}; if [ ${c#*:} = 1 ]; then rmdir $x/$r || exit 94; else rm $s/$r/$me || exit 95; fi; done
}
uniq_of() { for r in 1 2 3 4 5 6; do case " $* " in *" $r:1 "*) echo $r:1;; *" $r:0 "*) echo $r:0;; esac; done; }
while [ $n -lt $ROUNDS ] || [ ! -e /tmp/enough ]; do
	n=$((n + 1)); first=$(some); more="$first $(some)"
	agbox-agent acquire --wait $(args $first) >/tmp/out.$me || exit 96
	work $first
	agbox-agent acquire --wait $(args $more) >/tmp/out.$me || exit 97
	work $more
	[ $((RANDOM % 2)) = 0 ] || agbox-agent release >/tmp/out.$me || exit 98
done
agbox-agent done complete`

// TestAllAgentsOfARandomScheduleFinish runs for AGBOX_SCHEDULE, which "make schedule-agents" sets.
// Without it, each agent has two rounds.
func TestAllAgentsOfARandomScheduleFinish(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	length, err := time.ParseDuration(os.Getenv("AGBOX_SCHEDULE"))
	if err != nil && os.Getenv("AGBOX_SCHEDULE") != "" {
		t.Fatal(err)
	}
	var ids []string
	for n := range 20 {
		script := fmt.Sprintf("ROUNDS=2; SEED=%d; [ %v = true ] || touch /tmp/enough\n", n+1, length > 0)
		ids = append(ids, spawn(t, in, script+schedule, fmt.Sprintf("a%d", n), "--in", "demo"))
	}
	if length > 0 {
		<-time.After(length)
		in.Must(t, "exec", "demo", "--", "touch", "/tmp/enough")
	}
	for _, id := range ids {
		await(t, in, id, "COMPLETED")
	}
}
