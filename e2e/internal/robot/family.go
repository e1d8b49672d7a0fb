package robot

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Root is the agent at the top, whose inbox is the operator's.
const Root = "init"

// Family is what is known of all agents of an install after all of them have ended.
type Family struct {
	// Agents are in the order in which they were made, without Root. Events are those of all
	// of them and of Root, in the order of their positions.
	Agents []*agboxv1.Agent
	Events []*agboxv1.AgentEvent
	// Unread are the messages that are left in the inboxes of the agents and of Root.
	Unread map[string][]*agboxv1.AgentMessage
	// Folder has what the robots did.
	Folder Folder
}

// post is a message with its recipient.
type post struct {
	to string
	diary.Letter
}

// String counts what happened.
func (f Family) String() string {
	count := make(map[string]int)
	for _, a := range f.Agents {
		count[a.GetWord()]++
		count["incarnations"] += int(a.GetIncarnation())
	}
	for _, ev := range f.Events {
		if ev.GetType() == agboxv1.AgentEventType_AGENT_REPARENTED {
			count["adoptions"]++
		}
	}
	return fmt.Sprintf("%d agents, %d events: %v", len(f.Agents), len(f.Events), count)
}

// Check checks that each agent has ended and had a living parent all the time, that each end
// and each adoption was told once, that no message was lost or came twice or before an
// earlier one of its sender, and that each effect came once.
func (f Family) Check(t *testing.T) {
	t.Helper()
	posts := f.posts(t)
	f.checkTree(t, posts)
	for _, a := range f.Agents {
		story := f.Folder.Story(t, a.GetAgentId())
		story.Check(t, a)
		story.checkSent(t, posts)
		f.checkStream(t, story, posts)
	}
	checkOrder(t, posts)
}

// posts returns all messages that were ever delivered, those of an inbox in its order. What
// a robot has received and not acknowledged is also among the unread ones.
func (f Family) posts(t *testing.T) (posts []post) {
	t.Helper()
	ids := []string{Root}
	for _, a := range f.Agents {
		ids = append(ids, a.GetAgentId())
	}
	for _, id := range ids {
		letters, err := diary.Letters(string(f.Folder), id)
		if err != nil {
			t.Fatal(err)
		}
		last := uint64(0)
		for _, l := range letters {
			if l.Seq <= last {
				t.Errorf("agent %s received message %d after %d", id, l.Seq, last)
			}
			last = l.Seq
			posts = append(posts, post{id, l})
		}
		for _, m := range f.Unread[id] {
			if m.GetSeq() > last {
				posts = append(posts, post{id, diary.Letter{
					Seq: m.GetSeq(), Kind: strings.TrimPrefix(m.GetKind().String(), "MESSAGE_KIND_"), From: m.GetFrom(), Key: m.GetKey(), Stream: m.GetStream(),
				}})
			}
		}
	}
	return posts
}

// aboutLeases reports whether a message of the kind CHILD says that the child needs what its
// recipient has.
func (p post) aboutLeases() bool { return strings.HasPrefix(p.Key, "conflict-") }

// ofAgbox reports whether agbox itself tells the operator that a start of the sender could not be
// written down.
func (p post) ofAgbox() bool { return p.to == Root && strings.HasPrefix(p.Key, "never-started/") }

// news counts the messages of a kind about the life of an agent in an inbox.
func news(posts []post, kind, to, about string) (n int) {
	for _, p := range posts {
		if p.Kind == kind && p.to == to && p.From == about && !p.aboutLeases() {
			n++
		}
	}
	return n
}

// ends are the kinds of the messages that tell of an end.
var ends = []string{"CHILD", "DEAD_LETTER", "BUDGET"}

// checkTree replays the events.
func (f Family) checkTree(t *testing.T, posts []post) {
	t.Helper()
	living, parents := map[string]bool{Root: true}, make(map[string]string)
	adoptions := make(map[[2]string]int)
	for _, ev := range f.Events {
		id := ev.GetAgentId()
		switch ev.GetType() {
		case agboxv1.AgentEventType_AGENT_SPAWNED:
			if id == Root {
				continue
			}
			living[id], parents[id] = true, ev.GetSpawned().GetParent()
			if !living[parents[id]] {
				t.Errorf("agent %s was spawned below %s, which had ended", id, parents[id])
			}
		case agboxv1.AgentEventType_AGENT_REPARENTED:
			parent, from := ev.GetReparent().GetParent(), ev.GetReparent().GetFrom()
			if !living[parent] || living[from] || from != parents[id] {
				t.Errorf("agent %s, a child of %s, was taken from %s and given to %s; those that live are %v", id, parents[id], from, parent, living)
			}
			parents[id] = parent
			adoptions[[2]string{parent, id}]++
		case agboxv1.AgentEventType_AGENT_ENDED:
			if id == Root {
				t.Error("the root has ended")
			}
			if !living[id] || !living[parents[id]] {
				t.Errorf("agent %s ended once more, or as a child of %s, which had ended", id, parents[id])
			}
			living[id] = false
		}
	}
	for _, a := range f.Agents {
		id := a.GetAgentId()
		if living[id] {
			t.Errorf("agent %s is %s and has not ended", id, a.GetWord())
		}
		everywhere := 0
		for _, p := range posts {
			// The root is told of a dead letter or a budget beside the parent.
			besides := p.to == Root && parents[id] != Root && p.Kind != "CHILD"
			if slices.Contains(ends, p.Kind) && p.From == id && !p.aboutLeases() && !besides {
				everywhere++
			}
		}
		n := 0
		for _, kind := range ends {
			n += news(posts, kind, parents[id], id)
		}
		if n != 1 || everywhere != 1 {
			t.Errorf("the end of agent %s was told %d times to its parent %s, and %d times in all", id, n, parents[id], everywhere)
		}
	}
	for _, p := range posts {
		if who := [2]string{p.to, p.From}; p.Kind == "ADOPTED" && adoptions[who] == 0 {
			t.Errorf("agent %s was told that it has adopted %s, and it has not", p.to, p.From)
		}
	}
	for who, n := range adoptions {
		if told := news(posts, "ADOPTED", who[0], who[1]); told != n {
			t.Errorf("agent %s adopted %s %d times and was told %d times", who[0], who[1], n, told)
		}
	}
}

// checkSent checks that each acknowledged message of a robot is in an inbox, and that each
// of its messages that is in one was sent.
func (s Story) checkSent(t *testing.T, posts []post) {
	t.Helper()
	var sent []string
	came := make(map[string]bool)
	for _, p := range posts {
		if p.Kind == "TEXT" && p.From == s.agentID && p.Stream == "" && !p.ofAgbox() {
			came[p.Key] = true
		}
	}
	for _, e := range s.entries {
		if e.Op != "send" || e.Stream != "" {
			continue
		}
		sent = append(sent, e.Key)
		if e.What == diary.Ack && !came[e.Key] {
			t.Errorf("message %s of agent %s was acknowledged and is lost", e.Key, s.agentID)
		}
	}
	for key := range came {
		if !slices.Contains(sent, key) {
			t.Errorf("message %q of agent %s was delivered and never sent", key, s.agentID)
		}
	}
}

// checkStream checks that each message that a robot has sent on a stream came to all from
// which it descends: they have opened the stream before. Those that ended before the robot
// did may have missed some.
func (f Family) checkStream(t *testing.T, s Story, posts []post) {
	t.Helper()
	got := make(map[[2]string]bool)
	for _, p := range posts {
		if p.Kind == "TEXT" && p.From == s.agentID && p.Stream != "" {
			got[[2]string{p.to, p.Key}] = true
		}
	}
	for _, reader := range f.ancestors(s.agentID) {
		for _, e := range s.entries {
			if e.Op == "send" && e.Stream != "" && e.What == diary.Ack && !got[[2]string{reader, e.Key}] {
				t.Errorf("message %s of agent %s on the stream %s was acknowledged and did not come to %s", e.Key, s.agentID, e.Stream, reader)
			}
		}
	}
}

// ancestors returns the agents from which an agent descends by birth and that it has not
// outlived.
func (f Family) ancestors(id string) (list []string) {
	born, ended := make(map[string]string), make(map[string]int)
	for i, ev := range f.Events {
		switch ev.GetType() {
		case agboxv1.AgentEventType_AGENT_SPAWNED:
			born[ev.GetAgentId()] = ev.GetSpawned().GetParent()
		case agboxv1.AgentEventType_AGENT_ENDED:
			ended[ev.GetAgentId()] = i
		}
	}
	for a := born[id]; a != "" && a != Root; a = born[a] {
		if ended[a] > ended[id] {
			list = append(list, a)
		}
	}
	return list
}

// checkOrder checks that an inbox has no message twice, and those of each sender in their
// order.
func checkOrder(t *testing.T, posts []post) {
	t.Helper()
	last := make(map[[3]string]int)
	for _, p := range posts {
		if p.Kind != "TEXT" || p.ofAgbox() {
			continue
		}
		step := 0
		_, err := fmt.Sscanf(p.Key, "step-%d", &step)
		who := [3]string{p.From, p.to, p.Stream}
		if err != nil || step <= last[who] {
			t.Errorf("agent %s got message %q of %s after step %d", p.to, p.Key, p.From, last[who])
		}
		last[who] = step
	}
}
