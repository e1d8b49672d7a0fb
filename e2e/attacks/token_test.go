package attacks

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// thief reads the tokens of all other agents in its sandbox, and says something in their name
// from a child, from a daemon with the environment of the victim, and from a daemon that has
// also put on the mark of the victim's processes. It prints how each was answered.
const thief = `
found=
for dir in /proc/[0-9]*; do
	agent=$(tr '\0' '\n' <$dir/environ 2>/dev/null | sed -n 's/^AGBOX_AGENT_ID=//p')
	[ -n "$agent" ] && [ "$agent" != "$AGBOX_AGENT_ID" ] || continue
	case "$found" in *" $agent"*) continue;; esac
	export STOLEN_FROM=$dir
	say='while IFS= read -r -d "" v; do export "$v"; done <$STOLEN_FROM/environ; agbox-agent send neighbour stolen 2>/dev/null; echo "$AGBOX_AGENT_ID $?" >>/tmp/$OUT'
	mark=$(sed -n 's/^Max file locks *[^ ]* *\([^ ]*\) .*/\1/p' $dir/limits)
	export OUT=$AGBOX_AGENT_ID.out
	bash -c "$say"
	(setsid bash -c "$say; touch /tmp/$OUT.daemon" &)
	until [ -e /tmp/$OUT.daemon ]; do sleep 0.01; done; rm /tmp/$OUT.daemon
	(setsid bash -c "ulimit -Sx $mark; ulimit -Hx $mark; $say; touch /tmp/$OUT.daemon" &)
	until [ -e /tmp/$OUT.daemon ]; do sleep 0.01; done; rm /tmp/$OUT.daemon
	found="$found $agent"
done
sort /tmp/$OUT | uniq -c | sed 's/^ *//'
agbox-agent done complete
`

// TestAStolenTokenSpeaksForNobody has a child, whose stack has a border, take the tokens of its
// parent, of an older sibling and of a neighbour.
func TestAStolenTokenSpeaksForNobody(t *testing.T) {
	t.Parallel()
	Row(t, 100, "the token of another agent in the same sandbox")
	in := harness.New(t)
	in.Create(t, "box", harness.ImageDebian)
	neighbour := in.Must(t, "agent", "spawn", "neighbour", "--in", "box", "--", "sh", "-c", `exec sleep 1000`)
	parent := in.Must(t, "agent", "spawn", "parent", "--in", "box", "--may-spawn", "worker", "--agent-env", "THIEF="+thief, "--", "sh", "-c", `
		victim=$(agbox-agent spawn --class worker --name victim -- sleep 1000)
		until cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | grep -q AGBOX_AGENT_ID=$victim; do sleep 0.01; done
		thief=$(agbox-agent spawn --class worker --name thief --stack den --sandbox shared -- bash -c "$THIEF")
		agbox-agent wait $thief >/dev/null; agbox-agent kill $victim >/dev/null; agbox-agent done complete`)
	in.Must(t, "agent", "wait", parent)
	// Of the parent, its other child and the neighbour, three refusals each.
	out := in.Must(t, "agent", "logs", "thief")
	lines := strings.Split(out, "\n")
	for _, line := range lines {
		if !strings.HasPrefix(line, "3 ") || !strings.HasSuffix(line, " 3") {
			t.Errorf("the answers are %q, want the exit code 3, three times", line)
		}
	}
	if len(lines) != 3 || !strings.Contains(out, neighbour) || !strings.Contains(out, parent) {
		t.Errorf("the thief got:\n%s", out)
	}
	in.Must(t, "agent", "kill", neighbour)
}
