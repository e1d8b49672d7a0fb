package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
	lines := []portLine{}
	for _, container := range box.GetContainers() {
		for _, p := range container.GetPorts() {
			lines = append(lines, portLine{
				Container: containerWord(container.GetService()), ContainerPort: p.GetContainerPort(),
				Protocol: protocolWord(p.GetProtocol()), HostIP: p.GetHostIp(), HostPort: p.GetHostPort(),
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
	case out.format == formatJSON:
		return printJSON(a.stdout, lines)
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
	if out.format == formatJSON {
		return printJSON(a.stdout, lines)
	}
	rows := make([][]view.Cell, len(lines))
	for i, l := range lines {
		address := "none while it is stopped"
		if l.HostPort != 0 {
			address = net.JoinHostPort(l.HostIP, strconv.Itoa(int(l.HostPort)))
		}
		rows[i] = cells(l.Container, fmt.Sprintf("%d/%s", l.ContainerPort, l.Protocol), address)
	}
	return a.printTable(out, []view.Column{{Title: "CONTAINER", Min: 7}, {Title: "PORT"}, {Title: "ADDRESS", Min: 10}}, rows)
}

// containerWord names a container of a sandbox by its service.
func containerWord(service string) string {
	if service == "" {
		return "primary"
	}
	return service
}

func protocolWord(p agboxv1.PortProtocol) string { return enumWord(p.String(), "PORT_PROTOCOL_") }
