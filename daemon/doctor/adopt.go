package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/filesystem"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/store"
)

// adoption is one sandbox that gets a new record.
type adoption struct {
	ledger.Adopted
	finding *agboxv1.DoctorFinding
	agents  []agentAdoption
}

// adoptAll plans the adoption of everything that the engine has of the install. With fix
// set it also performs it, completely or not at all.
func (o Offline) adoptAll(ctx context.Context, out *agboxv1.DoctorResponse, found runtime.Inventory, fix bool) error {
	base := out.GetFindings()[0]
	base.Action, base.NeedsPerson = adopt, false
	var plan []adoption
	for _, c := range found.Containers {
		if c.Role != runtime.RolePrimary {
			continue
		}
		a, err := o.plan(ctx, c, out.GetInstallId())
		if err != nil {
			return err
		}
		out.Findings = append(out.Findings, a.finding)
		if a.finding.GetAction() == adopt {
			plan = append(plan, a)
		}
	}
	if err := o.adoptServices(ctx, found, plan); err != nil {
		return err
	}
	if err := o.adoptExecs(ctx, plan); err != nil {
		return err
	}
	base.Why = fmt.Sprintf("It is gone. A new one is made for the %s whose containers are still there; "+
		"if you have a backup, put it back instead. Earlier events are lost.", counted(len(plan), "sandbox", "sandboxes"))
	plan = distinctNames(plan)
	out.Findings = append(out.Findings, o.adoptAgents(plan)...)
	out.Findings = append(out.Findings, o.companions(found, plan)...)
	if !fix {
		return nil
	}
	if err := o.carryOut(ctx, plan); err != nil {
		base.Error = err.Error()
		return nil
	}
	base.Done = true
	for _, a := range plan {
		a.finding.Done = true
		for _, g := range a.agents {
			g.finding.Done = true
		}
	}
	return nil
}

// plan decides about one primary container. Labels can be copied. But only somebody with
// access to this install's folders can have made a container that mounts the folders of
// its own sandbox.
func (o Offline) plan(ctx context.Context, c runtime.Container, installID string) (adoption, error) {
	f := &agboxv1.DoctorFinding{Action: leave, Kind: container, Name: c.Name, Id: c.ID, SandboxId: c.SandboxID}
	a := adoption{finding: f}
	d, err := o.describe(ctx, c.ID)
	if err != nil {
		return a, err
	}
	if why := o.foreign(c, d, installID); why != "" {
		f.NeedsPerson = true
		f.Why = why + " It is not adopted; remove it, or the daemon does so after its grace period."
		return a, nil
	}
	spec, lost := o.rebuild(d)
	a.Adopted = ledger.Adopted{
		ID: c.SandboxID, Nonce: c.Nonce, Spec: spec,
		Running: c.State == runtime.StateRunning || c.State == runtime.StatePaused,
	}
	f.Action = adopt
	becomes := "stopped"
	if a.Running {
		becomes = "ready"
	}
	f.Why = fmt.Sprintf("It is %s; its sandbox is adopted as %s. %s", c.State, becomes, lost)
	return a, nil
}

// adoptServices adds the services of the planned sandboxes to their specs.
func (o Offline) adoptServices(ctx context.Context, found runtime.Inventory, plan []adoption) error {
	for _, a := range plan {
		var names []string
		for _, c := range found.Containers {
			if c.Role != runtime.RoleService || c.SandboxID != a.ID || c.Nonce != a.Nonce || !runtime.IsServiceName(c.Name, a.ID, c.Service) {
				continue
			}
			d, err := o.describe(ctx, c.ID)
			if err != nil {
				return err
			}
			a.Spec.Services = append(a.Spec.Services, rebuildService(d))
			names = append(names, c.Service)
		}
		if len(names) == 0 {
			continue
		}
		slices.Sort(names)
		slices.SortFunc(a.Spec.GetServices(), func(x, y *agboxv1.ServiceSpec) int { return strings.Compare(x.GetName(), y.GetName()) })
		a.finding.Why += fmt.Sprintf(" Its services (%s) are adopted as optional ones; their order, hooks and limits are lost.", strings.Join(names, ", "))
	}
	return nil
}

func (o Offline) describe(ctx context.Context, containerID string) (runtime.Description, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return o.Engine.DescribeContainer(ctx, containerID)
}

// distinctNames keeps the name of the first of two sandboxes with the same name.
func distinctNames(plan []adoption) []adoption {
	taken := make(map[string]bool)
	for _, a := range plan {
		name := a.Spec.GetName()
		if name != "" && taken[name] {
			a.Spec.Name = ""
			a.finding.Why += fmt.Sprintf(" Another sandbox has the name %q; this one gets none.", name)
		}
		taken[name] = true
	}
	return plan
}

// companions reports everything that is not a primary container.
func (o Offline) companions(found runtime.Inventory, plan []adoption) []*agboxv1.DoctorFinding {
	why := func(id runtime.Identity) string {
		if slices.ContainsFunc(plan, func(a adoption) bool { return a.ID == id.SandboxID && a.Nonce == id.Nonce }) {
			return "It belongs to an adopted sandbox and is kept."
		}
		return "No container of its sandbox is left to adopt; once the daemon runs, it removes this after its grace period."
	}
	var list []*agboxv1.DoctorFinding
	for _, c := range found.Containers {
		if c.Role != runtime.RolePrimary {
			list = append(list, &agboxv1.DoctorFinding{Action: leave, Kind: container, Name: c.Name, Id: c.ID, SandboxId: c.SandboxID, Why: why(c.Identity)})
		}
	}
	for _, n := range found.Networks {
		list = append(list, &agboxv1.DoctorFinding{Action: leave, Kind: network, Name: n.Name, Id: n.ID, SandboxId: n.SandboxID, Why: why(n.Identity)})
	}
	for _, v := range found.Volumes {
		list = append(list, &agboxv1.DoctorFinding{Action: leave, Kind: volume, Name: v.Name, Id: v.Name, SandboxId: v.SandboxID, Why: why(v.Identity)})
	}
	for _, id := range listFolders(o.Paths.Logs()) {
		if !slices.ContainsFunc(plan, func(a adoption) bool { return a.ID == id }) {
			list = append(list, &agboxv1.DoctorFinding{
				Action: leave, Kind: logFolder, Name: o.Paths.SandboxLogs(id), SandboxId: id,
				Why: "The sandbox of these logs is gone; they are kept.",
			})
		}
	}
	return list
}

// adoptingSuffix marks a database that does not have all adopted sandboxes yet.
const adoptingSuffix = ".adopting"

// carryOut makes a database with all adopted sandboxes and renames it last. A daemon that
// found it without them would treat their containers as orphans.
func (o Offline) carryOut(ctx context.Context, plan []adoption) error {
	path := o.Paths.Database()
	temp := path + adoptingSuffix
	clear := func() error { return removeAll(temp, temp+".clean", temp+".new") }
	if err := clear(); err != nil { // left by an interrupted adoption
		return err
	}
	if err := o.build(ctx, temp, plan); err != nil {
		return errors.Join(err, clear())
	}
	if err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); err != nil {
		return errors.Join(fmt.Errorf("the new database cannot get its name %s: %w", path, err), clear())
	}
	return errors.Join(removeAll(temp+".clean"), filesystem.SyncDir(filepath.Dir(path)))
}

func (o Offline) build(ctx context.Context, path string, plan []adoption) (err error) {
	db, err := store.Open(ctx, store.Options{
		Path: path, Sentinel: o.Paths.Sentinel(), Logger: o.Log, AdoptLost: true, Now: o.Now,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	book, err := ledger.Open(ctx, db, o.Now, o.Log)
	if err != nil {
		return err
	}
	for _, a := range plan {
		if _, err := book.Adopt(ctx, a.Adopted); err != nil {
			return fmt.Errorf("sandbox %s: %w", a.ID, err)
		}
		o.Log.Info("a sandbox was adopted", "sandbox_id", a.ID)
		for _, g := range a.agents {
			if _, err := book.AdoptAgent(ctx, g.AdoptedAgent); err != nil {
				return fmt.Errorf("agent %s: %w", g.ID, err)
			}
			o.Log.Info("an agent was adopted", "agent_id", g.ID)
		}
	}
	return nil
}

func removeAll(files ...string) error {
	var failed error
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// agentAdoption is one agent that gets a new record.
type agentAdoption struct {
	ledger.AdoptedAgent
	finding *agboxv1.DoctorFinding
}

// adoptAgents adds the agents to the planned sandboxes and returns what it found.
func (o Offline) adoptAgents(plan []adoption) []*agboxv1.DoctorFinding {
	var list []*agboxv1.DoctorFinding
	names := make(map[string]bool)
	for _, a := range o.Agents() {
		f := &agboxv1.DoctorFinding{Action: leave, Kind: agentRecord, Name: a.Name, Id: a.ID, SandboxId: a.SandboxID}
		list = append(list, f)
		at := slices.IndexFunc(plan, func(p adoption) bool { return p.ID == a.SandboxID })
		if at < 0 {
			f.Why = "The container of its sandbox is gone, so the agent is not adopted. Spawn it anew."
			continue
		}
		f.Action = adopt
		f.Why = fmt.Sprintf("It is adopted with its incarnation %d; its earlier history is lost.", a.Incarnation)
		if a.Incarnation == 0 {
			f.Why = "It is adopted; it had not begun."
		}
		if names[a.Name] && a.Name != "" {
			f.Why += fmt.Sprintf(" Another agent has the name %q; this one gets none.", a.Name)
			a.Name = ""
		}
		names[a.Name] = true
		plan[at].agents = append(plan[at].agents, agentAdoption{a, f})
	}
	return list
}

// adoptExecs adds the execs to the planned sandboxes. Their status files were written in
// the containers, so a file that cannot be used never keeps its sandbox from being adopted.
func (o Offline) adoptExecs(ctx context.Context, plan []adoption) error {
	claims := make(map[string]int)
	found := make([]ledger.AdoptedExecs, len(plan))
	for i, a := range plan {
		folder := o.Paths.SandboxLogs(a.ID)
		if _, err := os.Lstat(folder); err == nil {
			a.finding.Why += fmt.Sprintf(" The logs of its commands stay in %s.", folder)
		}
		var err error
		found[i], err = o.Execs(ctx, a.ID, a.Running)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			o.Log.Warn("the commands of a sandbox cannot be adopted", "sandbox_id", a.ID, "error", err)
			a.finding.Why += fmt.Sprintf(" Its commands are not adopted: %v.", err)
		}
		for _, e := range found[i].Execs {
			claims[e.Request.GetExecId()]++
		}
	}
	for i := range plan {
		// Exec ids are unique in an install, so all but one of these claims are false.
		// Nobody can tell which.
		all := len(found[i].Execs)
		found[i].Execs = slices.DeleteFunc(found[i].Execs, func(e ledger.AdoptedExec) bool { return claims[e.Request.GetExecId()] > 1 })
		plan[i].Execs = found[i].Execs
		plan[i].finding.Why += toldExecs(found[i], all-len(found[i].Execs))
	}
	return nil
}

// toldExecs says which commands of a sandbox are adopted, and which are not.
func toldExecs(found ledger.AdoptedExecs, claimedTwice int) string {
	running := 0
	for _, e := range found.Execs {
		if e.End == nil {
			running++
		}
	}
	var said string
	if n := len(found.Execs); n > 0 {
		said += fmt.Sprintf(" %s adopted, %d of them running.", counted(n, "command is", "commands are"), running)
	}
	if found.Refused > 0 {
		said += fmt.Sprintf(" %s not valid; their commands are not adopted.", counted(found.Refused, "status file is", "status files are"))
	}
	if claimedTwice > 0 {
		said += fmt.Sprintf(" %s not adopted, because another sandbox claims the same id.", counted(claimedTwice, "command is", "commands are"))
	}
	if found.Omitted > 0 {
		said += fmt.Sprintf(" %s not adopted, because there are too many.", counted(found.Omitted, "older command is", "older commands are"))
	}
	if found.More {
		said += " Its log folder has too many files; some were not read."
	}
	return said
}
