package main

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func (a *app) portCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "port SANDBOX [flags]",
		Short: "List the ports that a sandbox publishes on this machine",
		Long: `List the ports that a sandbox and its services publish on this machine. With
host_port 0 in the spec, the engine picks a free port at each start, so the port may
change after a stop.`,
		Args:              arguments(1, 1, "one SANDBOX"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return listPorts(ctx, a, c, args[0], out)
		}),
	}
	addFormat(cmd, &out)
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

func listPorts(ctx context.Context, a *app, c *client.Client, ref string, out format) error {
	box, err := c.GetSandbox(ctx, ref)
	if err != nil {
		return err
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
	if out == formatJSON {
		return printJSON(a.stdout, lines)
	}
	rows := make([][]string, len(lines))
	for i, l := range lines {
		address := "none while it is stopped"
		if l.HostPort != 0 {
			address = net.JoinHostPort(printable(l.HostIP), strconv.Itoa(int(l.HostPort)))
		}
		rows[i] = []string{printable(l.Container), fmt.Sprintf("%d/%s", l.ContainerPort, l.Protocol), address}
	}
	return printTable(a.stdout, []string{"CONTAINER", "PORT", "ADDRESS"}, rows)
}

// containerWord names a container of a sandbox by its service.
func containerWord(service string) string {
	if service == "" {
		return "primary"
	}
	return service
}

func protocolWord(p agboxv1.PortProtocol) string { return enumWord(p.String(), "PORT_PROTOCOL_") }
