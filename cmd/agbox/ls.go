package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type lsOptions struct {
	listing[*agboxv1.SandboxHandle]
	deleted bool
	all     bool
	labels  []string
}

func (a *app) lsCommand() *cobra.Command {
	o := lsOptions{listing: listing[*agboxv1.SandboxHandle]{id: (*agboxv1.SandboxHandle).GetSandboxId, keys: sandboxFilters}}
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List sandboxes, newest first",
		Long: `List sandboxes, newest first. If the container engine does not answer, a line on stderr
says that the states are the last known ones; the exit code is 0.`,
		RunE: a.runs(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "list also those of which only files are left to remove")
	f.BoolVar(&o.deleted, "deleted", false, "list also those that are deleted")
	f.StringArrayVar(&o.labels, "label", nil, "only sandboxes with `KEY=VALUE` (repeatable)")
	o.listing.addFlags(cmd)
	return cmd
}

func (o *lsOptions) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	labels, err := assignments("label", o.labels)
	if err != nil {
		return err
	}
	asked := func(state string) bool {
		return o.filtersBy("state", "status") && slices.ContainsFunc(o.filters, func(f string) bool { return strings.HasSuffix(f, "="+state) })
	}
	list, err := c.ListSandboxes(ctx, client.ListOptions{
		IncludeDeleted: o.deleted || asked("deleted"), IncludeEnded: o.all || asked("deleting"), Labels: labels,
	})
	if err != nil {
		return err
	}
	if list, err = o.filtered(list); err != nil {
		return err
	}
	a.tellOfNoEngine(ctx, c)
	return o.print(a, list, sandboxColumns(list), a.sandboxRows)
}

// tellOfNoEngine says that the states of sandboxes are old if the engine does not answer.
func (a *app) tellOfNoEngine(ctx context.Context, c *client.Client) {
	p, err := c.Ping(ctx)
	if err != nil || p.GetEngine().GetReachable() || p.GetEngine().GetError() == "" {
		return // it is known to answer, or not known not to
	}
	a.say("The container engine does not answer, so states are the last known ones. `agbox daemon status` says why.")
}

// servicesWord counts the services that are ready and names the others.
func servicesWord(h *agboxv1.SandboxHandle) string {
	all := h.GetServiceStatus()
	if len(all) == 0 {
		return "-"
	}
	ready := 0
	var others []string
	for _, s := range all {
		if s.GetState() == agboxv1.ServiceState_SERVICE_STATE_READY {
			ready++
			continue
		}
		others = append(others, s.GetName()+" "+enumWord(s.GetState().String(), "SERVICE_STATE_"))
	}
	word := fmt.Sprintf("%d/%d ready", ready, len(all))
	if len(others) > 0 {
		word += " (" + strings.Join(others, ", ") + ")"
	}
	return word
}

// sandboxColumns are the columns of sandboxRows.
func sandboxColumns(list []*agboxv1.SandboxHandle) []view.Column {
	placed := slices.ContainsFunc(list, func(h *agboxv1.SandboxHandle) bool { return h.GetLabels()[folderLabel] != "" })
	served := slices.ContainsFunc(list, func(h *agboxv1.SandboxHandle) bool { return len(h.GetServiceStatus()) > 0 })
	return []view.Column{
		{Title: "NAME"},
		{Title: "ID", Min: 12, Omit: 1},
		{Title: "STATE"},
		{Title: "IMAGE", Min: 10, Omit: 2},
		{Title: "EXECS", Right: true, Omit: 5},
		{Title: "CREATED", Omit: 3},
		{Title: "FOLDER", Min: 12, Omit: 6, Wide: !placed},
		{Title: "SERVICES", Min: 10, Omit: 4, Wide: !served},
		{Title: "LABELS", Wide: true},
		{Title: "REASON", Wide: true},
	}
}

// sandboxRows show sandboxes, one in each row.
func (a *app) sandboxRows(list []*agboxv1.SandboxHandle) [][]view.Cell {
	rows, home, places := make([][]view.Cell, len(list)), a.host().Home, placesOf(list, placeOf)
	for i, h := range list {
		rows[i] = cells(
			orDash(h.GetName()), h.GetSandboxId(), stateCell(sandboxState(h)), orDash(h.GetImage()),
			h.GetActiveExecs(), a.sinceCell(h.GetCreatedAt()), folderWord(h, places[i].gone, home), servicesWord(h),
			labelsWord(h.GetLabels()), orDash(cmp.Or(h.GetErrorMessage(), h.GetDegradedReason())),
		)
	}
	return rows
}

// folderWord is the folder of a sandbox, and whether it is gone.
func folderWord(h *agboxv1.SandboxHandle, gone bool, home string) string {
	word := orDash(tilde(h.GetLabels()[folderLabel], home))
	if gone {
		word += " (gone)"
	}
	return word
}

// labelsWord lists labels in the order of their names.
func labelsWord(labels map[string]string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, key+"="+labels[key])
	}
	return orDash(strings.Join(words, ","))
}

func (a *app) inspectCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "inspect REF... [flags]",
		Short: "Show everything about sandboxes or commands",
		Long: `Show everything about sandboxes or commands. REF is an id, the beginning of an id, or
a name; a command can also be named as SANDBOX/NAME. On a terminal, a value that is longer
than a line goes on in the next ones; elsewhere each value is one line.
With -o json the output is always an array; each element has the key sandbox or
the key exec.`,
		Args:              arguments(1, -1, "a SANDBOX or EXEC"),
		ValidArgsFunction: a.completeBoth(),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return inspect(ctx, a, c, args, out)
		}),
	}
	addFormat(cmd, &out.format)
	addTemplate(cmd, &out)
	return cmd
}

func inspect(ctx context.Context, a *app, c *client.Client, refs []string, out output) error {
	var found []proto.Message
	failed := a.each(ctx, refs, func(ref string) error {
		m, err := a.find(ctx, c, ref)
		if err == nil {
			found = append(found, m)
		}
		return err
	})
	if ctx.Err() != nil {
		return failed
	}
	if out.raw() {
		if err := printItems(a, out, found); err != nil {
			return err
		}
		return failed
	}
	for i, m := range found {
		if i > 0 {
			fmt.Fprintln(a.stdout, "---")
		}
		if err := printOutline(a.stdout, m, a.tableOptions(out).Width); err != nil {
			return err
		}
		if box, ok := m.(*agboxv1.GetSandboxResponse); ok {
			a.tellUncovered(ctx, c, box.GetSandbox().GetSandboxId())
		}
	}
	return failed
}

// find looks for a sandbox, then for an exec; SANDBOX/EXEC can only be an exec.
func (a *app) find(ctx context.Context, c *client.Client, ref string) (proto.Message, error) {
	within := strings.Contains(ref, "/")
	if !within {
		id, err := a.sandbox(ctx, c, ref, reads)
		if err == nil {
			return c.GetSandbox(ctx, id)
		}
		if !errors.Is(err, client.ErrNotFound) {
			return nil, err
		}
	}
	id, err := a.resolve(ctx, c, ofExec, ref, reads)
	var e *client.Error
	switch {
	case err == nil:
		exec, err := c.GetExec(ctx, id)
		return &agboxv1.GetExecResponse{Exec: exec}, err
	case !within && errors.Is(err, client.ErrNotFound) && errors.As(err, &e):
		return nil, &client.Error{Code: e.Code, Reason: e.Reason, Metadata: e.Metadata, Message: fmt.Sprintf(
			"No sandbox or command is named %s. `agbox ls` and `agbox ps` list them.", printable(ref))}
	}
	return nil, err
}

func (a *app) portCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "port SANDBOX [PORT[/PROTOCOL]] [flags]",
		Short: "List the ports that a sandbox publishes on this machine",
		Long: `List the ports that a sandbox and its services publish on this machine. With
host_port 0 in the spec, the engine picks a free port at each start, so the port may
change after a stop.

With PORT, a port of the container, only its addresses on this machine are printed, one
per line. The protocol is tcp unless it is given.`,
		Example:           `  curl http://$(agbox port demo 80)/`,
		Args:              arguments(1, 2, "one SANDBOX and one PORT"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 1 {
				return listPorts(ctx, a, c, args[0], out)
			}
			return showPort(ctx, a, c, args[0], args[1], out)
		}),
	}
	addTable(cmd, &out)
	return cmd
}

// portLine is a port in the JSON output.
type portLine struct {
	Container     string `json:"container"` // "primary", or the service's name
	ContainerPort uint32 `json:"container_port"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"host_ip"`
	HostPort      uint32 `json:"host_port"`
}

// publishedPorts are the ports that a sandbox and its services publish.
func publishedPorts(ctx context.Context, a *app, c *client.Client, ref string) ([]portLine, error) {
	id, err := a.sandbox(ctx, c, ref, reads)
	if err != nil {
		return nil, err
	}
	box, err := c.GetSandbox(ctx, id)
	if err != nil {
		return nil, err
	}
	var lines []portLine
	for _, container := range box.GetContainers() {
		for _, p := range container.GetPorts() {
			lines = append(lines, portLine{
				Container: cmp.Or(container.GetService(), "primary"), ContainerPort: p.GetContainerPort(),
				Protocol: enumWord(p.GetProtocol().String(), "PORT_PROTOCOL_"), HostIP: p.GetHostIp(), HostPort: p.GetHostPort(),
			})
		}
	}
	return lines, nil
}

// showPort prints the addresses of one port of a sandbox.
func showPort(ctx context.Context, a *app, c *client.Client, ref, port string, out output) error {
	number, protocol, given := strings.Cut(port, "/")
	wanted, err := strconv.ParseUint(number, 10, 16)
	if err != nil || wanted == 0 || given && protocol == "" {
		return usagef("%q is not a port: write a number from 1 to 65535, and /udp behind it for that protocol.", port)
	}
	lines, err := publishedPorts(ctx, a, c, ref)
	if err != nil {
		return err
	}
	lines = slices.DeleteFunc(lines, func(l portLine) bool {
		return uint64(l.ContainerPort) != wanted || l.HostPort == 0 || !strings.EqualFold(l.Protocol, cmp.Or(protocol, "tcp"))
	})
	switch {
	case len(lines) == 0:
		return &client.Error{Code: codes.NotFound, Message: fmt.Sprintf("Sandbox %s does not publish port %s now. `agbox port %[1]s` lists its ports.", ref, port)}
	case out.raw():
		return printItems(a, out, lines)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(a.stdout, net.JoinHostPort(printable(l.HostIP), strconv.Itoa(int(l.HostPort)))); err != nil {
			return err
		}
	}
	return nil
}

func listPorts(ctx context.Context, a *app, c *client.Client, ref string, out output) error {
	lines, err := publishedPorts(ctx, a, c, ref)
	if err != nil {
		return err
	}
	return printList(a, out, lines, []view.Column{{Title: "CONTAINER", Min: 7}, {Title: "PORT"}, {Title: "ADDRESS", Min: 10}}, eachRow(func(l portLine) []view.Cell {
		address := "none while it is stopped"
		if l.HostPort != 0 {
			address = net.JoinHostPort(l.HostIP, strconv.Itoa(int(l.HostPort)))
		}
		return cells(l.Container, fmt.Sprintf("%d/%s", l.ContainerPort, l.Protocol), address)
	}))
}

func isSandboxState(h *agboxv1.SandboxHandle, value string) bool {
	return isState(sandboxState(h), value)
}

func isSandboxImage(h *agboxv1.SandboxHandle, value string) bool { return isImage(h.GetImage(), value) }

// sandboxFilters are the keys of agbox ls; status and ancestor are docker's words.
var sandboxFilters = filterKeys[*agboxv1.SandboxHandle]{
	"id":       func(h *agboxv1.SandboxHandle, v string) bool { return strings.HasPrefix(h.GetSandboxId(), v) },
	"name":     func(h *agboxv1.SandboxHandle, v string) bool { return strings.Contains(h.GetName(), v) },
	"state":    isSandboxState,
	"status":   isSandboxState,
	"image":    isSandboxImage,
	"ancestor": isSandboxImage,
	"label":    func(h *agboxv1.SandboxHandle, v string) bool { return hasLabel(h.GetLabels(), v) },
}
