package incarnations

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// received decodes the only answer, and lists number and text of its messages.
func received(t *testing.T, got []*guestv1.AnswerRequest) (list []string, more bool) {
	t.Helper()
	if len(got) != 1 || got[0].GetCode() != "" {
		t.Fatalf("answered: %v", got)
	}
	var answer struct {
		Messages []message
		More     bool
	}
	if err := json.Unmarshal(got[0].GetJson(), &answer); err != nil {
		t.Fatal(err)
	}
	for _, m := range answer.Messages {
		list = append(list, fmt.Sprint(m.Seq, " ", m.Kind, " ", m.From, " ", m.Text))
	}
	return list, answer.More
}

func TestRecvWaitsForAMessageAndAcknowledgesThoseBefore(t *testing.T) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	b.Ledger.NotifyAgents(b.enqueue)
	send := func(text string) {
		t.Helper()
		if _, err := b.Ledger.SendMessage(t.Context(), "init", "x", "", text); err != nil {
			t.Fatal(err)
		}
	}
	recv := func(number, after uint64) []*guestv1.AnswerRequest {
		t.Helper()
		b.ask(b.link, &guestv1.AgentRequest{Number: number, Op: "recv", Json: fmt.Appendf(nil, `{"after":%d}`, after)})
		return b.decided(to)
	}
	if got := recv(1, 0); len(got) != 0 {
		t.Fatalf("without a message it answers %v", got)
	}
	enqueued := b.enqueued
	send("one")
	if b.enqueued == enqueued {
		t.Error("the message enqueues nobody")
	}
	if got, _ := received(t, b.decided(to)); !slices.Equal(got, []string{"1 TEXT init one"}) {
		t.Errorf("received %q", got)
	}
	if got, _ := received(t, recv(2, 0)); !slices.Equal(got, []string{"1 TEXT init one"}) {
		t.Errorf("before the acknowledgement it received %q", got)
	}
	if got := recv(3, 1); len(got) != 0 || b.Ledger.Unread("x") != 0 {
		t.Errorf("after the acknowledgement there are %d messages, and it answers %v", b.Ledger.Unread("x"), got)
	}
	b.ask(b.link) // withdrawn
	b.ask(b.link, &guestv1.AgentRequest{Number: 4, Op: "recv", Json: []byte(`{"after":1,"no_wait":true}`)})
	if got, more := received(t, b.decided(to)); len(got) != 0 || more {
		t.Errorf("without waiting: %q", got)
	}
	send("two")
	send(strings.Repeat("x", recvBytes))
	if got, more := received(t, recv(5, 1)); !slices.Equal(got, []string{"2 TEXT init two"}) || !more {
		t.Errorf("received %.99q, and more: %v", got, more)
	}
	if got, more := received(t, recv(6, 2)); len(got) != 1 || more {
		t.Errorf("received %d messages, and more: %v", len(got), more)
	}
}

// TestEachMessageSaysHowManyWaitAfterIt: an answer ends before a message that does not fit, and
// agbox-agent prints nothing but messages.
func TestEachMessageSaysHowManyWaitAfterIt(t *testing.T) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	for _, text := range []string{"one", "two", strings.Repeat("x", recvBytes), "four"} {
		if _, err := b.Ledger.SendMessage(t.Context(), "init", "x", "", text); err != nil {
			t.Fatal(err)
		}
	}
	var got [][]int
	for number, after := range []uint64{0, 2, 3, 4} {
		b.ask(b.link, &guestv1.AgentRequest{Number: uint64(number + 1), Op: "recv", Json: fmt.Appendf(nil, `{"after":%d,"no_wait":true}`, after)})
		var answer struct{ Messages []struct{ Left *int } }
		if err := json.Unmarshal(b.decided(to)[0].GetJson(), &answer); err != nil {
			t.Fatal(err)
		}
		left := []int{}
		for _, m := range answer.Messages {
			left = append(left, *m.Left)
		}
		got = append(got, left)
	}
	if want := [][]int{{3, 2}, {1}, {0}, {}}; !reflect.DeepEqual(got, want) {
		t.Errorf("after the messages wait %v; want %v", got, want)
	}
}

// TestRecvRefusesNumbersThatNoMessageHas: waiting after a number that is still to come would
// hide the messages up to it.
func TestRecvRefusesNumbersThatNoMessageHas(t *testing.T) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	recv := func(number, after uint64) []*guestv1.AnswerRequest {
		t.Helper()
		b.ask(b.link, &guestv1.AgentRequest{Number: number, Op: "recv", Json: fmt.Appendf(nil, `{"after":%d}`, after)})
		return b.decided(to)
	}
	for number, after := range []uint64{1, 100} {
		if got := recv(uint64(number+1), after); len(got) != 1 || got[0].GetCode() != "CURSOR_OUT_OF_RANGE" || !strings.Contains(got[0].GetMessage(), "newest is 0") {
			t.Errorf("after %d of none: %v", after, got)
		}
	}
	for range 2 {
		if _, err := b.Ledger.SendMessage(t.Context(), "init", "x", "", "text"); err != nil {
			t.Fatal(err)
		}
	}
	if got := recv(3, 3); len(got) != 1 || got[0].GetCode() != "CURSOR_OUT_OF_RANGE" || b.Ledger.Unread("x") != 2 {
		t.Errorf("after 3 of 2: %v, and %d are unread", got, b.Ledger.Unread("x"))
	}
	if got, _ := received(t, recv(4, 1)); len(got) != 1 {
		t.Errorf("received %q", got)
	}
}
