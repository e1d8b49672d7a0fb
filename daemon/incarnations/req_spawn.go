package incarnations

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec"
)

// maxWork bounds the work that a parent gives, in bytes. maxKey bounds the key of a request.
const (
	maxWork = 64 << 10
	maxKey  = 256
)

// spawnFields is what a parent may say about a child. It runs in the sandbox of its parent, or
// in one with at most what that has. What is not here is as for the parent, or as in a new agent.
type spawnFields struct {
	Key     string            `json:"key"`
	Name    string            `json:"name"`
	Class   string            `json:"class"`
	Title   string            `json:"title"`
	Command []string          `json:"command"`
	Model   string            `json:"model"`
	Envs    map[string]string `json:"envs"`
	// Work is what it has to do.
	Work *string `json:"work"`
	// Ready is start or report.
	Ready string `json:"ready"`
	// Lifetime is detached or held, by the parent. Empty means that of the stack, or of the
	// install.
	Lifetime string `json:"lifetime"`
	// After has ids or names of agents below the parent that must be COMPLETED before.
	After  []string     `json:"after"`
	Budget *budgetField `json:"budget"`
	// Stack makes the child the root of a stack.
	Stack *stackField `json:"stack"`
	// Sandbox is new or shared. Empty means new for the root of a stack, else shared.
	Sandbox string `json:"sandbox"`
	sandboxFields
}

// own reports whether the child gets a sandbox of its own.
func (f spawnFields) own() bool {
	return f.Sandbox == ownSandbox || f.Sandbox == "" && f.Stack != nil
}

type stackField struct {
	Name   string `json:"name"`
	Agents uint32 `json:"agents"`
	// ChildLifetime is the lifetime of the agents below its root.
	ChildLifetime string `json:"child_lifetime"`
	InboxBytes    uint64 `json:"inbox_bytes"`
	JournalBytes  uint64 `json:"journal_bytes"`
	CostUSD       string `json:"cost_usd"`
}

type budgetField struct {
	InputTokens *uint64 `json:"input_tokens"`
	CostUSD     string  `json:"cost_usd"`
}

// spawn makes a child of the agent. Its id follows from the parent and the key, so a repeated
// request makes no other one, also from a later incarnation.
func (r *Runner) spawn(ctx context.Context, a ledger.Agent, q request) (any, bool, error) {
	f, err := spawnFieldsOf(a, q)
	if err != nil {
		return nil, false, err
	}
	rules, may := agents.SpawnRulesOf(a.Spec)
	if !may || !rules.Allows(f.Class) {
		return nil, false, notAllowed(a, rules, may, f.Class)
	}
	n := ledger.NewAgent{
		ID: childID(a, f.Key, q), Name: f.Name, Parent: a.ID, MaxChildren: rules.Children,
		Spec: specOfChild(a, rules, f), SandboxID: a.Incarnation.SandboxID,
	}
	if f.Work != nil {
		n.Work = []byte(*f.Work)
	}
	if f.own() {
		if err := r.ownSandbox(ctx, a, rules, f, &n); err != nil {
			return nil, false, err
		}
	}
	for _, ref := range f.After {
		other, err := r.descendant(a, ref)
		if err != nil {
			return nil, false, err
		}
		n.Spec.After = append(n.Spec.After, other.ID)
	}
	if known, again := r.ledger.Agent(n.ID); again {
		if f.Lifetime == "" { // it was decided then
			n.Spec.Lifetime = known.Spec.GetLifetime()
		}
		return r.spawned(known, n)
	}
	if f.Lifetime == "" {
		n.Spec.Lifetime = r.lifetimeBelow(a)
	}
	if err := mayAct(a, q.op); err != nil {
		return nil, false, err
	}
	if n.Spec, err = r.admitChild(n, f); err != nil {
		return nil, false, err
	}
	made, err := r.ledger.SpawnAgent(ctx, n)
	if err != nil {
		return nil, false, err
	}
	if n.Own != nil {
		r.sandboxes.Enqueue(made.SandboxID)
	}
	r.enqueue(made.ID)
	return r.answerSpawn(made)
}

// lifetimeBelow is the lifetime of the children of an agent that are spawned without one: that
// of the innermost stack that has one, else that of the install.
func (r *Runner) lifetimeBelow(a ledger.Agent) agboxv1.AgentLifetime {
	for _, id := range slices.Backward(a.StackRoots) {
		root := a
		if id != a.ID {
			root, _ = r.ledger.Agent(id)
		}
		if set := root.Spec.GetStack().GetChildLifetime(); set != 0 {
			return set
		}
	}
	return r.childLifetime
}

// childID is made of the parent and the key. A request without a key has its number instead.
func childID(a ledger.Agent, key string, q request) string {
	if key == "" {
		key = fmt.Sprintf("%d/%d", a.Incarnation.N, q.number)
	} else {
		key = "key " + key
	}
	return ids.OfKey("child of " + a.ID + ": " + key)
}

// spawned answers a request whose child exists.
func (r *Runner) spawned(known ledger.Agent, n ledger.NewAgent) (any, bool, error) {
	before, now := spec.WithoutOwnEnvs(known.Spec), spec.WithoutOwnEnvs(n.Spec) // it may be from before they were refused
	before.Budget, now.Budget = nil, nil                                        // it was decided from what was left then
	if known.Name != n.Name || !proto.Equal(before, now) || known.Owned != (n.Own != nil) || r.ownDiffers(known, n) {
		return nil, false, fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_REQUEST_KEY_REUSED,
			"The key was used to spawn agent %s, which is another one: use a new key.", known.ID).With("agent_id", known.ID)
	}
	return r.answerSpawn(known)
}

// spawnFieldsOf reads a request. Fields that a child may not have are refused.
func spawnFieldsOf(a ledger.Agent, q request) (f spawnFields, err error) {
	var all map[string]json.RawMessage
	if err := q.decode(&all); err != nil {
		return f, err
	}
	allowed := []string{"key", "name", "class", "title", "command", "model", "envs", "work", "ready", "lifetime", "after", "stack", "budget",
		"sandbox", "workspace", "limits", "share_mounts", "share_tools", "allow_host"}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(allowed, name) {
			return f, fault.New(errdefs.ErrPermissionDenied, agboxv1.ErrorReason_SPAWN_NOT_ALLOWED,
				"A child has at most what its parent has, so %.64q cannot be given. These can: %s.", name, strings.Join(allowed, ", ")).With("agent_id", a.ID)
		}
	}
	in := json.NewDecoder(bytes.NewReader(q.body))
	in.DisallowUnknownFields()
	if err := in.Decode(&f); err != nil {
		return f, invalid("The fields cannot be read: %v.", err)
	}
	switch {
	case len(f.Command) == 0:
		return f, invalid("An agent needs a command: give the program that it runs, as a list of words.")
	case len(f.After) > maxNamed:
		return f, invalid("after has %d agents and may have %d: follow those that end last.", len(f.After), maxNamed)
	case len(f.Key) > maxKey:
		return f, invalid("The key has %d bytes and may have %d: use a shorter one.", len(f.Key), maxKey)
	case f.Work != nil && len(*f.Work) > maxWork:
		return f, invalid("The work has %d bytes and may have %d: write it into a file, and give its name.", len(*f.Work), maxWork)
	case f.Ready != "" && f.Ready != "start" && f.Ready != "report":
		return f, invalid("ready is start or report, not %.32q.", f.Ready)
	case f.Lifetime != "" && lifetimes[f.Lifetime] == 0:
		return f, invalid("lifetime is detached or held, not %.32q.", f.Lifetime)
	case f.Sandbox != "" && f.Sandbox != ownSandbox && f.Sandbox != sharedSandbox:
		return f, invalid("sandbox is new or shared, not %.32q.", f.Sandbox)
	case !f.own() && !f.unset():
		return f, invalid("workspace, limits, share_mounts, share_tools and allow_host are of a sandbox of the child's own: give the sandbox \"new\", or leave them out.")
	case !slices.Contains([]string{"", workspaceCopy, workspaceBranch, workspaceShared, workspaceNone}, f.Workspace):
		return f, invalid("workspace is copy, branch, shared or none, not %.32q.", f.Workspace)
	case f.Workspace == workspaceBranch && badBranch(f.Name):
		return f, invalid("The name %.64q is no name for a branch of git: use one without \"..\" that does not end in a point or in .lock.", f.Name)
	case len(f.Mounts)+len(f.Tools) > maxNamed:
		return f, invalid("share_mounts and share_tools name %d things and may name %d: leave some out.", len(f.Mounts)+len(f.Tools), maxNamed)
	case f.Stack != nil && f.Stack.ChildLifetime != "" && lifetimes[f.Stack.ChildLifetime] == 0:
		return f, invalid("child_lifetime is detached or held, not %.32q.", f.Stack.ChildLifetime)
	}
	return f, nil
}

var lifetimes = map[string]agboxv1.AgentLifetime{
	"detached": agboxv1.AgentLifetime_AGENT_LIFETIME_DETACHED,
	"held":     agboxv1.AgentLifetime_AGENT_LIFETIME_HELD,
}

// notAllowed refuses a child, and says what is allowed.
func notAllowed(a ledger.Agent, rules agents.SpawnRules, may bool, class string) error {
	advice := "write the block may_spawn into the description of the agent"
	switch {
	case may && len(rules.Classes) == 0:
		advice = "leave the class out, or name it in may_spawn: {classes: [...]}"
	case may:
		advice = "its may_spawn allows the classes " + strings.Join(rules.Classes, ", ")
	}
	return fault.New(errdefs.ErrPermissionDenied, agboxv1.ErrorReason_SPAWN_NOT_ALLOWED,
		"Agent %s may not spawn an agent of class %.64q: %s.", a.ID, class, advice).With("agent_id", a.ID)
}

// specOfChild makes the spec of a child without its budget. It has the user, the folder and
// the limits of its parent. Probes are of a program, so it has none.
func specOfChild(a ledger.Agent, rules agents.SpawnRules, f spawnFields) *agboxv1.AgentSpec {
	p := spec.WithoutOwnEnvs(a.Spec)
	envs := p.GetEnvs()
	if envs == nil {
		envs = make(map[string]string, len(f.Envs))
	}
	maps.Copy(envs, f.Envs)
	child := &agboxv1.AgentSpec{
		Name: f.Name, Class: f.Class, Title: f.Title, Command: f.Command, Model: f.Model, Envs: envs,
		User: p.GetUser(), WorkingDir: p.GetWorkingDir(), Heartbeat: p.GetHeartbeat(), Context: p.GetContext(), Drain: p.GetDrain(),
		Retry: p.GetRetry(), Breaker: p.GetBreaker(), Calls: p.GetCalls(), Revival: p.GetRevival(),
		IdleTimeout: p.GetIdleTimeout(), LeaseTtl: p.GetLeaseTtl(), MaySpawn: rules.OfChild(),
		Tells: p.GetTells(), WakeOn: p.GetWakeOn(),
	}
	if child.Model == "" {
		child.Model = p.GetModel()
	}
	if s := f.Stack; s != nil {
		child.Stack = &agboxv1.AgentStack{Name: s.Name, Agents: s.Agents, InboxBytes: s.InboxBytes, JournalBytes: s.JournalBytes, CostUsd: s.CostUSD, ChildLifetime: lifetimes[s.ChildLifetime]}
	}
	if f.Lifetime != "" {
		child.Lifetime = lifetimes[f.Lifetime]
	}
	if f.Ready == "report" {
		child.Ready = agboxv1.AgentReady_AGENT_READY_REPORT
	}
	return proto.CloneOf(child)
}

// admitChild adds the budget that is wanted to the spec of a child and checks it.
func (r *Runner) admitChild(n ledger.NewAgent, f spawnFields) (*agboxv1.AgentSpec, error) {
	var wanted *agboxv1.AgentBudget
	if f.Budget != nil {
		wanted = &agboxv1.AgentBudget{InputTokens: f.Budget.InputTokens, CostUsd: f.Budget.CostUSD}
	}
	sb, exists := r.ledger.Sandbox(n.SandboxID)
	if !exists && n.Own == nil {
		return nil, parentRemoved()
	}
	child := proto.CloneOf(n.Spec)
	child.Budget = wanted
	if n.Own != nil {
		if err := r.sandboxes.Admit(n.Own); err != nil {
			return nil, err
		}
		return r.admit(n.Own, child)
	}
	return r.admit(sb.Spec, child)
}

// ownSandbox gives a new child a sandbox of its own, made from that of its parent. The values
// of secret variables go over too, because the parent's program has them as well.
func (r *Runner) ownSandbox(ctx context.Context, a ledger.Agent, rules agents.SpawnRules, f spawnFields, n *ledger.NewAgent) error {
	if rules.Sandboxes == 0 {
		return fault.New(errdefs.ErrPermissionDenied, agboxv1.ErrorReason_SPAWN_NOT_ALLOWED,
			"Agent %s may give its children no sandboxes of their own: write may_spawn: {sandboxes: 8} into its description, or spawn the child with the sandbox %q. Then the border of a stack orders and does not protect.",
			a.ID, sharedSandbox).With("agent_id", a.ID)
	}
	sb, exists := r.ledger.Sandbox(n.SandboxID)
	if !exists {
		return parentRemoved()
	}
	sb, err := r.ledger.Reveal(ctx, sb)
	if err != nil {
		return err
	}
	n.Own, err = derivation{
		parent: sb.Spec, fields: f.sandboxFields, branch: cmp.Or(f.Name, n.ID),
		from: &agboxv1.DerivedSpec{Parent: a.ID, ParentSandbox: n.SandboxID, Tree: r.ledger.TreeOf(a), User: a.Spec.GetUser()},
	}.spec()
	n.SandboxID, n.MaxSandboxes = "agent-"+n.ID, rules.Sandboxes
	n.Spec.CleanupAfter = a.Spec.GetCleanupAfter()
	if without := n.Spec.GetRetry().GetReduced(); without != nil {
		without.WithoutServices = nil // the services stay with the parent
	}
	return err
}

func parentRemoved() error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND, "The sandbox of the parent is being removed: spawn the agent from another one.")
}

// ownDiffers reports whether the sandbox of a child that exists was made by another request. One
// that is gone tells nothing, and neither does one that was adopted after the loss of the
// database: its spec is made of its container, which does not say what was asked for.
func (r *Runner) ownDiffers(known ledger.Agent, n ledger.NewAgent) bool {
	sb, exists := r.ledger.Sandbox(known.SandboxID)
	if n.Own == nil || !exists || sb.Spec.GetDerived() == nil {
		return false
	}
	asked := proto.CloneOf(n.Own)
	asked.Derived = proto.CloneOf(sb.Spec.GetDerived()) // the rest of it follows from the parent
	asked.Derived.Workspace = n.Own.GetDerived().GetWorkspace()
	shown, _ := secrets.HideSpec(asked)
	return !proto.Equal(sb.Spec, shown)
}

// answerSpawn answers once the workspace is copied that the child gets: what the parent changes
// after that is its own. The end of a sandbox that cannot be made is told as that of the child.
func (r *Runner) answerSpawn(made ledger.Agent) (any, bool, error) {
	answer := gate.Spawned{Child: childOf(made), Sandbox: sharedSandbox, SandboxID: made.SandboxID}
	switch made.BorderOf() {
	case agboxv1.StackBorder_STACK_BORDER_ORDERS:
		answer.Border, answer.Notice = "orders", sharedNotice
	case agboxv1.StackBorder_STACK_BORDER_PROTECTS:
		answer.Border = "protects"
	}
	if !made.Owned {
		return answer, false, nil
	}
	answer.Sandbox = ownSandbox
	sb, exists := r.ledger.Sandbox(made.SandboxID)
	copying := exists && !made.Over() && sb.Want == machine.WantRunning && sb.State == machine.Pending &&
		!sb.Copied && !sb.WasReady && sb.Spec.GetDerived().GetWorkspace() != ""
	return answer, copying, nil
}

// sharedNotice is about a stack that shares a container with others.
const sharedNotice = "The border of this stack orders and does not protect: agents on both sides share a container, and can reach each other's files and processes. The sandbox \"new\" protects."
