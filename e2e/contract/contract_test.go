package contract

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// lines are the behaviours that clients of the published contract rely on, numbered as in
// the list by which they were checked. A line may have several cases.
var lines = []struct {
	number int
	says   string
	holds  func(*testing.T, *world)
}{
	{1, "a subscription carries published event types only", eventTypes},
	{2, "last_event_sequence of an exec is the newest of its sandbox and a valid cursor", execSequence},
	{3, "errors carry the published reasons", errorReasons},
	{4, "idle_ttl takes 0 and less than a second; its stop has the reason idle_ttl", idleTTL},
	{5, "companions do not hold READY up", companionsDoNotGate},
	{6, "companion_containers is a map in config_yaml", companionMap},
	{7, "command keeps the entrypoint of the image", commandKeepsEntrypoint},
	{7, "HOST_UID and HOST_GID are those of the daemon", hostIDs},
	{8, "the image's own command is hidden", mainCommandIsHidden},
	{9, "~ in the targets of mounts and copies is the home of the user inside", homeInTargets},
	{10, "ids have 4 to 200 characters, with _", idsOf200},
	{10, "an id that is taken is refused, also for the same request", takenIDs},
	{10, "a request key makes a create repeatable", requestKeys},
	{10, "an id is the whole id, also of what was deleted", wholeIDs},
	{10, "a name or the beginning of an id is not found", noNames},
	{11, "a snapshot repeats the newest event", snapshotIsNewestEvent},
	{11, "lists are newest first", listsAreNewestFirst},
	{11, "a second cancel is no error of the command line", secondCancel},
	{12, "empty requests are refused in words", emptyRequests},
	{13, "generated ids are UUIDs", generatedIDs},
	{13, "names of containers and networks have the whole ids", engineNames},
	{14, "~ in sources is the home of the caller, and tools come without what is optional and missing", homeInSources},
	{15, "what the published rules forbid is refused in its words", strictSpecs},
	{16, "stops and removals have the published reasons", reasonsOfEnds},
	{17, "what is being deleted already is not deleted again", deletedOnce},
	{18, "companions are started before READY, and do not hold it up", companionsFirst},
	{19, "idle_ttl and cleanup_ttl have the published defaults", publishedLifetimes},
	{12, "every registered service has a health", healthOfEveryService},
	{20, "each state allows the published calls", statesAllow},
	{21, "events are complete, in order, and read from any place", history},
	{22, "commands end in the published ways", execLives},
	{23, "labels select", selections},
	{24, "Ping, ids that are refused, and a failure in event and record", greetings},
}

func TestPublishedContract(t *testing.T) {
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	for _, line := range lines {
		t.Run(fmt.Sprintf("line %02d, %s", line.number, line.says), func(t *testing.T) {
			t.Parallel()
			line.holds(t, &world{publishedClient: connect(t, in.Socket()), in: in})
		})
	}
}

// world is a daemon and a client of the published contract.
type world struct {
	*publishedClient
	in *harness.Install
}

// create makes a sandbox and waits until it is READY, as the published SDKs do.
func (w *world) create(t *testing.T, spec fields) string {
	t.Helper()
	return w.createFrom(t, fields{"create_spec": spec})
}

func (w *world) createFrom(t *testing.T, request fields) string {
	t.Helper()
	id := w.call(t, "CreateSandbox", request).text("sandbox.sandbox_id")
	w.await(t, id, "SANDBOX_STATE_READY")
	return id
}

// await waits for a state: it reads the state, then events from there on, then the state
// again.
func (w *world) await(t *testing.T, id, state string) answer {
	t.Helper()
	for {
		box := w.call(t, "GetSandbox", fields{"sandbox_id": id})
		switch box.text("sandbox.state") {
		case state:
			return box
		case "SANDBOX_STATE_FAILED":
			t.Fatalf("%s has failed: %s", id, box.text("sandbox.error_message"))
		}
		events := w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "from_sequence": box.text("sandbox.last_event_sequence")})
		if _, err := events.next(t); err != nil {
			t.Fatalf("the events of %s ended before it was %s: %v", id, state, err)
		}
	}
}

// run runs a command to its end as the published SDKs do: GetExec returns the position in
// the events from which on it waits for the end. It returns the command's standard
// output.
func (w *world) run(t *testing.T, id string, command ...string) string {
	t.Helper()
	created := w.call(t, "CreateExec", fields{"sandbox_id": id, "command": command})
	exec := fields{"exec_id": created.text("exec_id")}
	status := w.call(t, "GetExec", exec)
	if status.text("exec.state") == "EXEC_STATE_RUNNING" {
		w.subscribe(t, "SubscribeSandboxEvents", fields{"sandbox_id": id, "from_sequence": status.text("exec.last_event_sequence")}).
			until(t, func(ev answer) bool {
				return ev.text("exec.exec_id") == exec["exec_id"] && ev.text("exec.exec_state") != "EXEC_STATE_RUNNING"
			})
		status = w.call(t, "GetExec", exec)
	}
	stdout, err := os.ReadFile(created.text("stdout_log_path"))
	if err != nil {
		t.Fatal(err)
	}
	if code := status.text("exec.exit_code"); code != "0" {
		stderr, _ := os.ReadFile(created.text("stderr_log_path"))
		t.Fatalf("%s: exit code %s\nstdout: %s\nstderr: %s", strings.Join(command, " "), code, stdout, stderr)
	}
	return string(stdout)
}

// shell runs a shell command line.
func (w *world) shell(t *testing.T, id, line string) string {
	t.Helper()
	return w.run(t, id, "sh", "-c", line)
}
