package reconcile

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/secrets"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// restTrouble describes a problem of a sandbox that the loop cannot solve. unlinked says
// why its supervisor cannot be linked, logs why it cannot write logs; both may be nil.
// network says what is wrong with its network, or is empty.
func restTrouble(o machine.Observation, unlinked, logs error, network string) string {
	switch {
	case o.Primary != nil && o.Primary.State == runtime.StatePaused:
		return "The primary container is paused; unpause it with the engine's own tools."
	case o.Stray:
		return "The engine does not have the primary container, but its processes run on, and commands work. They end when the sandbox is stopped or removed."
	case o.ConnectFailed && unlinked != nil:
		return unlinked.Error()
	case o.ConnectFailed:
		return "The supervisor cannot be reached; if it lasts, stop and start the sandbox."
	case logs != nil:
		return logs.Error()
	}
	return network
}

// networkTrouble describes a change of the network of a running primary. Commands still
// run, and the change is not undone, because a user may have disconnected a sandbox on
// purpose.
func networkTrouble(inv runtime.Inventory, primary *runtime.Container) string {
	switch {
	case primary == nil || primary.State != runtime.StateRunning:
		return ""
	case len(inv.Networks) == 0:
		return fmt.Sprintf("The network of the sandbox was removed outside agbox; commands still run in it. "+
			"To have a network again, save what you need, remove the sandbox with \"agbox rm %s\" and create it again.", primary.SandboxID)
	case primary.Detached:
		return fmt.Sprintf("The primary container was detached from its network outside agbox; commands still run in it. "+
			"To attach it again: docker network connect %s %s", inv.Networks[0].Name, primary.Name)
	}
	return ""
}

const (
	// lastLines and lastBytes bound the part of a service's log that goes into an event.
	lastLines, lastBytes = 5, 600
	// keptBytes is how much is read for that: a value of a secret variable that is cut could
	// not be recognized.
	keptBytes = 64 << 10
	// healthBytes is how much the engine keeps of the output of a healthcheck. It cuts off the rest,
	// and adds healthMore.
	healthBytes = 4096
	healthMore  = "..."
	// lastWordsTimeout bounds reading it, because the event waits for it.
	lastWordsTimeout = 2 * time.Second
)

// withLastWords adds the last output of a service to the event of its failure. It usually
// shows the reason. The event is stored and shown, so it gets no value of a secret variable.
func (l *Loop) withLastWords(ctx context.Context, sb ledger.Sandbox, ev *agboxv1.SandboxEvent, o machine.Observation) *agboxv1.SandboxEvent {
	d := ev.GetService()
	c := o.Services[d.GetName()].Container
	if ev.GetEventType() != agboxv1.EventType_SANDBOX_SERVICE_FAILED || c == nil {
		return ev
	}
	revealed, err := l.ledger.Reveal(ctx, sb)
	if err != nil {
		l.log.Debug("the output of a service may have secrets that cannot be recognized", "sandbox_id", sb.ID, "error", err)
		return ev
	}
	secret := redactor(revealed.Spec)
	said := ""
	add := func(kind string, words string) {
		if words != "" {
			said += fmt.Sprintf(" %s: %s", kind, words)
		}
	}
	switch d.GetErrorCode() {
	case agboxv1.ErrorReason_SERVICE_UNHEALTHY.String():
		add("The healthcheck says", healthWords(secret, l.healthOutput(ctx, c.ID)))
		fallthrough // the failed object may not be a service
	case agboxv1.ErrorReason_SERVICE_EXITED.String():
		add("Its last output", outputWords(secret, l.lastOutput(ctx, c.ID)))
	}
	if said == "" {
		return ev
	}
	ev = proto.CloneOf(ev)
	ev.GetService().ErrorMessage += said
	return ev
}

// redactor finds the values of the secret variables of a sandbox; nil if it has none.
func redactor(s *agboxv1.CreateSpec) *logs.Redactor {
	var values []string
	add := func(envs map[string]string, marked []string) {
		for _, name := range secrets.Names(envs, marked) {
			values = append(values, printable(strings.ReplaceAll(envs[name], "\r", "\n"))) // each line counts
		}
	}
	add(s.GetEnvs(), s.GetSecretEnvs())
	for _, service := range s.GetServices() {
		add(service.GetEnvs(), service.GetSecretEnvs())
	}
	return logs.NewRedactor(values)
}

func (l *Loop) lastOutput(ctx context.Context, containerID string) []byte {
	out := new(tail)
	err := l.verb(ctx, lastWordsTimeout, func(ctx context.Context) error {
		return l.engine.ContainerLogs(ctx, containerID, runtime.LogOptions{Tail: lastLines}, out, out)
	})
	if err != nil {
		l.log.Debug("the log of a service could not be read", "container_id", containerID, "error", err)
	}
	return out.bytes()
}

func (l *Loop) healthOutput(ctx context.Context, containerID string) string {
	c, err := ask(ctx, l, lastWordsTimeout, l.engine.InspectContainer, containerID)
	if err != nil {
		l.log.Debug("a healthcheck's output could not be read", "container_id", containerID, "error", err)
	}
	return c.HealthOutput
}

// tail keeps the last bytes of what is written to it.
type tail struct {
	mu   sync.Mutex // guards kept
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p[max(0, len(p)-keptBytes):]...)
	t.kept = t.kept[max(0, len(t.kept)-keptBytes):]
	return len(p), nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept
}

// outputWords is what an event gets of the last output of a service, of which a tail was kept.
func outputWords(secret *logs.Redactor, raw []byte) string {
	return oneLine(secret.ReplacePart([]byte(printable(string(raw))), len(raw) >= keptBytes, false))
}

// healthWords is what an event gets of the output of a healthcheck. A character that the engine
// has cut through arrives as U+FFFD.
func healthWords(secret *logs.Redactor, text string) string {
	isCut := len(text) >= healthBytes
	if isCut {
		text = strings.TrimRight(strings.TrimSuffix(text, healthMore), "\uFFFD")
	}
	return oneLine(secret.ReplacePart([]byte(printable(text)), false, isCut))
}

// printable removes what a terminal does not show. It comes before values are looked for, in which
// it may stand. Line breaks stay: they separate the lines of a value.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// oneLine makes printable text from a container fit into a sentence.
func oneLine(raw []byte) string {
	raw = bytes.TrimSpace(raw[max(0, len(raw)-lastBytes):])
	return strings.ReplaceAll(strings.ToValidUTF8(string(raw), ""), "\n", " | ")
}
