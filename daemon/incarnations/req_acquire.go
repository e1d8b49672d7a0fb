package incarnations

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/lease"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// maxResource is the length of the name of a resource, in bytes.
const maxResource = 512

type acquireFields struct {
	Manifest []gate.Lease `json:"manifest"`
	Wait     bool         `json:"wait"`
	// Observation is the one that the program has taken, if the agent was paused.
	Observation uint64 `json:"observation"`
}

// acquire asks for all resources of a manifest at once. With wait it answers when they are
// granted; an agent that has died asks again as soon as it is woken.
func (r *Runner) acquire(ctx context.Context, a ledger.Agent, q request, fields acquireFields) (any, bool, error) {
	manifest, err := manifestOf(fields.Manifest)
	if err != nil {
		return nil, false, err
	}
	denied := a.Denied() // then this is another plan
	if taken := fields.Observation; taken != 0 && taken == a.PendingObservation() && (denied || len(a.Wants) == 0) {
		if a, err = r.ledger.ResumeOnRequest(ctx, a.ID, q.of(a), taken, denied); err != nil {
			return nil, false, err
		}
	}
	after, answer, err := r.ledger.AcquireLeases(ctx, a.Record, manifest, fields.Observation)
	pending := fault.ReasonOf(err) == agboxv1.ErrorReason_OBSERVATION_PENDING
	switch granted := answer.Verdict == agboxv1.LeaseVerdict_LEASE_VERDICT_GRANTED; {
	case pending && r.enters(a.ID):
		return nil, true, nil // woken during this round: the next one lets it go on first
	case fields.Wait && (pending || err == nil && granted && after.PendingObservation() != 0):
		return r.toObserve(ctx, a.ID)
	case err != nil:
		return nil, false, err
	case fields.Wait && !granted:
		return nil, true, nil
	}
	reply := gate.Acquired{Verdict: strings.TrimPrefix(answer.Verdict.String(), "LEASE_VERDICT_"), Phase: phaseOf(after), Leases: leasesOf(after)}
	if answer.Verdict != agboxv1.LeaseVerdict_LEASE_VERDICT_GRANTED && after.Pause != nil {
		reply.Message = after.Pause.Message
	}
	return reply, false, nil
}

// toObserve answers a program that waits for leases and whose agent was woken.
func (r *Runner) toObserve(ctx context.Context, id string) (any, bool, error) {
	a, exists := r.ledger.Agent(id)
	if !exists || a.PendingObservation() == 0 {
		return nil, true, nil // it has gone on meanwhile
	}
	raw, err := json.Marshal(r.observe(ctx, a))
	return gate.Acquired{Verdict: "OBSERVE", Phase: phaseOf(a), Leases: leasesOf(a), Observation: raw}, false, err
}

// enters reports whether the next round lets the agent go on without a report of its program.
func (r *Runner) enters(id string) bool {
	a, exists := r.ledger.Agent(id)
	if !exists || a.Incarnation == nil {
		return false
	}
	seen := agents.Seen{}
	r.See(a, &seen)
	return agents.Enters(a.Record, seen, agents.RulesOf(a.Spec))
}

type releaseFields struct {
	Resources []string `json:"resources"`
}

// release releases resources, or all that the agent holds. Those that it does not hold are
// ignored.
func (r *Runner) release(ctx context.Context, a ledger.Agent, _ request, fields releaseFields) (any, bool, error) {
	after, err := r.ledger.ReleaseLeases(ctx, a.Record, fields.Resources)
	return leasesOf(after), false, err
}

func leasesOf(a ledger.Agent) gate.Leases {
	list := []gate.Lease{}
	for _, h := range a.Holds {
		l := gate.Lease{Resource: h.Resource, Mode: "exclusive", Fence: h.Fence}
		if h.Mode == lease.Shared {
			l.Mode = "shared"
		}
		list = append(list, l)
	}
	return gate.Leases{Leases: list}
}

func phaseOf(a ledger.Agent) gate.Phase { return gate.Phase{Phase: a.Word()} }

// manifestOf checks a manifest.
func manifestOf(list []gate.Lease) ([]lease.Claim, error) {
	if len(list) == 0 || len(list) > agents.MaxLeases {
		return nil, invalid("A manifest has 1 to %d resources, and this one has %d.", agents.MaxLeases, len(list))
	}
	var manifest []lease.Claim
	for _, c := range list {
		if why := badResource(c.Resource); why != "" {
			return nil, invalid("%.80q is no resource: %s", c.Resource, why)
		}
		mode := lease.Exclusive
		switch c.Mode {
		case "", "exclusive":
		case "shared":
			mode = lease.Shared
		default:
			return nil, invalid("The mode of %s is %.80q, but must be exclusive or shared.", c.Resource, c.Mode)
		}
		manifest = append(manifest, lease.Claim{Resource: c.Resource, Mode: mode})
	}
	return manifest, nil
}

// serviceName is that of a service of a sandbox.
var serviceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$`)

// badResource says why a text is no name of a resource. Two texts are two resources, so a
// path must have its shortest form.
func badResource(name string) string {
	odd := func(c rune) bool { return c == utf8.RuneError || unicode.IsSpace(c) || !unicode.IsPrint(c) }
	switch {
	case name == "":
		return "it is empty."
	case len(name) > maxResource:
		return fmt.Sprintf("it is longer than %d bytes.", maxResource)
	case strings.ContainsFunc(name, odd):
		return "it must be printable text without spaces."
	}
	if file, ok := strings.CutPrefix(name, "file:"); ok && (!path.IsAbs(file) || path.Clean(file) != file) {
		return "write file: and an absolute path without .., for example file:/workspace/main.go."
	}
	if service, ok := strings.CutPrefix(name, "service:"); ok && !serviceName.MatchString(service) {
		return "write service: and the name of a service, for example service:db."
	}
	return ""
}
