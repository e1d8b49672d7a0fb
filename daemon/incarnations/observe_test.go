package incarnations

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
)

func TestAnObservationFitsIntoALine(t *testing.T) {
	o := observation{Notices: []string{}}
	long := strings.Repeat("x", maxResource)
	for n := range agents.MaxLeases {
		name := fmt.Sprint(n, long)
		o.Files = append(o.Files, agents.Change{Name: name, What: agents.Changed})
		o.LeasesLost = append(o.LeasesLost, "file:"+name)
		o.HeldMeanwhile = append(o.HeldMeanwhile, agents.Passed{Resource: "file:" + name})
	}
	got := o.bounded()
	if size := len(mustJSON(t, got)); size > maxObservation || size < maxObservation/2 {
		t.Errorf("it has %d bytes", size)
	}
	if len(got.Files) == 0 || len(got.LeasesLost) == 0 || len(got.HeldMeanwhile) == 0 || len(got.Notices) != 1 {
		t.Errorf("it has %d files, %d lost leases, %d holders, notices %q", len(got.Files), len(got.LeasesLost), len(got.HeldMeanwhile), got.Notices)
	}
	small := observation{Changes: agents.Changes{Files: o.Files[:3]}, Notices: []string{}}
	if got := small.bounded(); len(got.Files) != 3 || len(got.Notices) > 0 {
		t.Errorf("a small one has %d files, notices %q", len(got.Files), got.Notices)
	}
}

// A program can ask for an observation as often as it likes.
func TestJournalsAreReadOnceForThePictureBeforeAPause(t *testing.T) {
	b, to := working(t)
	line, err := journal.Encode(journal.Row{Op: journal.Picture, Seen: &journal.Seen{Files: map[string]journal.File{"/f": {Exists: true}}}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(b.Install.SandboxLogs("a"), logs.JournalName(agents.ExecID("x", 1)))
	if err := os.WriteFile(name, line, 0o600); err != nil {
		t.Fatal(err)
	}
	changed := func(number uint64) []agents.Change {
		t.Helper()
		if got := b.request(to, number, "pause", `{"reason":"approval"}`); got != nil {
			t.Fatalf("answered before the decision: %v", got)
		}
		if _, err := b.Ledger.ApproveAgent(t.Context(), "x", agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED, ""); err != nil {
			t.Fatal(err)
		}
		var o observation
		if err := json.Unmarshal(b.request(to, number, "pause", `{"reason":"approval"}`).GetJson(), &o); err != nil {
			t.Fatal(err)
		}
		return o.Files
	}
	want := []agents.Change{{Name: "/f", What: agents.Removed}}
	if got := changed(1); !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if got := b.observe(t.Context(), b.agent()).Files; !slices.Equal(got, want) {
		t.Errorf("asked again: %v", got)
	}
	id := b.agent().PendingObservation()
	if got := b.request(to, 2, "resumed", fmt.Sprintf(`{"how":"ok","observation":%d}`, id)); got.GetCode() != "" {
		t.Fatal(got)
	}
	if got := changed(3); len(got) > 0 {
		t.Errorf("after the next pause: %v", got)
	}
}
