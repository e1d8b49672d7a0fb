package agents

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// TestAgentsSendEachOtherMessages has an echo that answers two agents and the operator, while
// the daemon is killed.
func TestAgentsSendEachOtherMessages(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	echo := spawn(t, in, `after=0 n=0
		while [ $n -lt 7 ]; do
			agbox-agent recv $after > /tmp/got || exit 90
			while read -r m; do
				from=${m#*'"from":"'}; from=${from%%'"'*}; text=${m#*'"text":"'}; text=${text%%'"'*}
				after=${m#*'"seq":'}; after=${after%%,*}; n=$((n+1))
				agbox-agent send $from "echo $text" || exit 91
			done < /tmp/got
		done
		agbox-agent recv --timeout 1ms $after; [ $? = 4 ] || exit 92
		agbox-agent done complete`, "echo", "--in", "demo")
	talk := `for i in 1 2 3; do agbox-agent send echo "$AGBOX_AGENT $i" || exit 93; done
		n=0; while [ $n -lt 3 ]; do agbox-agent recv $n > /tmp/got.$AGBOX_AGENT || exit 94; cat /tmp/got.$AGBOX_AGENT; n=$((n+$(wc -l < /tmp/got.$AGBOX_AGENT))); done
		agbox-agent send nobody lost && agbox-agent recv $n || exit 95
		agbox-agent done complete`
	ann, bob := spawn(t, in, talk, "ann", "--in", "demo"), spawn(t, in, talk, "bob", "--in", "demo")
	in.Agbox(t, "agent", "send", "echo", "hello").Want(t, 0)
	in.KillDaemon(t)
	in.Must(t, "agent", "ls")
	for _, id := range []string{echo, ann, bob} {
		await(t, in, id, "COMPLETED")
	}
	for id, name := range map[string]string{ann: "ann", bob: "bob"} {
		var got []string
		for _, line := range strings.Split(strings.TrimSpace(in.Must(t, "agent", "logs", id)), "\n") {
			var m struct{ Kind, From, Text string }
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			got = append(got, m.Kind+" "+strings.ReplaceAll(m.Text, id, name))
		}
		want := []string{"TEXT echo " + name + " 1", "TEXT echo " + name + " 2", "TEXT echo " + name + " 3"}
		if len(got) != 4 || strings.Join(got[:3], ",") != strings.Join(want, ",") || !strings.HasPrefix(got[3], `BOUNCE The message to nobody was not delivered: There is no agent "nobody"`) {
			t.Errorf("%s received %q", name, got)
		}
	}
	if out := in.Must(t, "agent", "inbox", "init"); strings.Count(out, "echo hello") != 1 {
		t.Errorf("the operator has:\n%s", out)
	}
	if out := in.Must(t, "agent", "inbox", "init", "--ack", "1000"); strings.Contains(out, "echo hello") {
		t.Errorf("after the acknowledgement the operator has:\n%s", out)
	}
	in.Agbox(t, "agent", "send", "echo", "too late").Want(t, 4)
	in.Agbox(t, "agent", "send", "nobody", "x").Want(t, 3)
}

// TestAStreamReachesAllWhoHaveItOpen has an agent that sends on a stream to two others, one of
// which goes on in a second incarnation.
func TestAStreamReachesAllWhoHaveItOpen(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	const listener = `[ $AGBOX_INCARNATION = 1 ] && { agbox-agent open news && agbox-agent send teller ready || exit 90; }
		n=0; after=0; got=/tmp/got.$AGBOX_AGENT; agbox-agent recv > $got || exit 91
		[ $AGBOX_INCARNATION$AGBOX_AGENT = 1bob ] && exit 5
		until [ $n = 5 ]; do
			agbox-agent recv $after > $got || exit 92
			after=$(sed -n '$s/.*"seq":\([0-9]*\).*/\1/p' $got); n=$((n+$(grep -c '"kind":"TEXT"' $got))); grep '"kind":"TEXT"' $got
		done
		agbox-agent close news && agbox-agent done complete`
	teller := spawn(t, in, `n=0; until [ $n = 2 ]; do agbox-agent recv $n > /tmp/got || exit 93; n=$((n+$(wc -l < /tmp/got))); done
		for i in 1 2 3 4; do agbox-agent send --stream news "news $i" || exit 94; done
		agbox-agent done complete`, "teller", "--in", "demo")
	ann := spawn(t, in, listener, "ann", "--in", "demo")
	bob := spawn(t, in, listener, "bob", "--in", "demo", "--retry-delay", "10ms")
	await(t, in, teller, "COMPLETED")
	if out := in.Must(t, "agent", "send", "--stream", "news", "news 5"); len(strings.Fields(out)) != 4 || !strings.Contains(out, "ann\t") || !strings.Contains(out, "bob\t") {
		t.Errorf("a message from outside went to:\n%s", out)
	}
	for _, id := range []string{ann, bob} {
		await(t, in, id, "COMPLETED")
	}
	in.Agbox(t, "agent", "send", "--stream", "news", "too late").Want(t, 3)
	for _, id := range []string{ann, bob} {
		out := in.Must(t, "agent", "logs", id)
		for _, want := range []string{"news 1", "news 2", "news 3", "news 4", "news 5"} {
			if strings.Count(out, `"text":"`+want+`"`) != 1 || strings.Count(out, `"stream":"news"`) != 5 {
				t.Errorf("%s is not received once:\n%s", want, out)
			}
		}
	}
}
