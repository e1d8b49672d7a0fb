package contract

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// TestAnswersFit lists more than a client of the published contract accepts in one message.
// Sandboxes of ours get their list, whose clients accept more.
func TestAnswersFit(t *testing.T) {
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	w := &world{publishedClient: connect(t, in.Socket()), in: in}
	const boxes = 4
	large := fields{}
	for i := range 10 {
		large[fmt.Sprintf("LARGE_%d", i)] = strings.Repeat("x", 120<<10)
	}
	companion := func(name string) fields {
		return fields{"name": name, "image": harness.ImageBusybox, "command": []string{"sleep", "1000000"}, "envs": large}
	}
	for i := range boxes {
		id := fmt.Sprintf("large-%d", i)
		spec := fields{"image": harness.ImageBusybox, "labels": fields{"half": fmt.Sprint(i % 2)}, "services": []fields{companion("db")}}
		w.createFrom(t, fields{"sandbox_id": id, "create_spec": spec})
	}
	if r := w.refuse(t, "ListSandboxes", fields{}); r.code != codes.ResourceExhausted || r.reason != "INVALID_REQUEST" || !strings.Contains(r.message, "labels") {
		t.Errorf("a list of 4.8 MiB gives %+v", r)
	}
	if got := w.call(t, "ListSandboxes", fields{"label_selector": fields{"half": "1"}}).texts("sandboxes", "sandbox_id"); len(got) != boxes/2 {
		t.Errorf("half of the list has %v", got)
	}
	for i := range boxes {
		if shown := in.Must(t, "ls"); !strings.Contains(shown, fmt.Sprintf("large-%d", i)) {
			t.Errorf("agbox ls has no large-%d", i)
		}
	}
	tooLarge := fields{"image": harness.ImageBusybox, "services": []fields{companion("db"), companion("cache")}}
	if r := w.refuse(t, "CreateSandbox", fields{"create_spec": tooLarge}); r.code != codes.InvalidArgument || r.reason != "INVALID_REQUEST" {
		t.Errorf("a description of 2.4 MiB gives %+v", r)
	}
	manyLargeExecs(t, w)
}

// manyLargeExecs lists execs whose commands do not fit into one message together.
func manyLargeExecs(t *testing.T, w *world) {
	command := []string{"sleep", "1000000"}
	for range 12 {
		command = append(command, strings.Repeat("y", 100<<10))
	}
	id := w.create(t, fields{"image": harness.ImageBusybox})
	var first string
	for range 4 {
		first = w.call(t, "CreateExec", fields{"sandbox_id": id, "command": append([]string{"sh", "-c", "exec sleep 1000000"}, command...)}).text("exec_id")
	}
	if r := w.refuse(t, "ListActiveExecs", fields{"sandbox_id": id}); r.code != codes.ResourceExhausted || r.reason != "INVALID_REQUEST" {
		t.Errorf("a list of 4.8 MiB of execs gives %+v", r)
	}
	w.call(t, "CancelExec", fields{"exec_id": first})
	for _, format := range []string{"-a", "--no-trunc"} {
		if shown := w.in.Must(t, "ps", format, id); strings.Count(shown, "sleep") < 3 {
			t.Errorf("agbox ps %s has not all execs: %.2000s", format, shown)
		}
	}
}
