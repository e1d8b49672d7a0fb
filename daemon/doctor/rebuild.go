package doctor

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
)

// foreign says why a container is not a sandbox of this install although its
// labels say so; empty if it is one.
func (o Offline) foreign(c runtime.Container, d runtime.Description, installID string) string {
	switch {
	case c.InstallID != installID, !ids.Valid(c.SandboxID), !ids.Valid(c.Nonce):
		return "Its labels are not whole."
	case d.Name != runtime.PrimaryName(c.SandboxID):
		return fmt.Sprintf("Its labels speak of sandbox %s, whose container has another name.", c.SandboxID)
	case !mounts(d, o.Paths.GuestLink(c.SandboxID), paths.InContainerLink),
		!mounts(d, o.Paths.SandboxLogs(c.SandboxID), paths.InContainerLogs):
		return fmt.Sprintf("Its labels speak of sandbox %s, but it does not have that sandbox's folders under %s.", c.SandboxID, o.Paths.Data)
	}
	return ""
}

func mounts(d runtime.Description, source, target string) bool {
	return slices.ContainsFunc(d.Mounts, func(m runtime.Mount) bool { return m.Source == source && m.Target == target })
}

// rebuild makes a spec from what the engine and the supervisor's boot
// configuration still tell, and says what they do not.
func (o Offline) rebuild(d runtime.Description) (spec *agboxv1.CreateSpec, lost string) {
	spec = &agboxv1.CreateSpec{
		Image: d.ImageName,
		Name:  reconcile.NameOf(d.SandboxID, d.Hostname),
	}
	for _, entry := range d.Env {
		if key, value, ok := strings.Cut(entry, "="); ok {
			if spec.Envs == nil {
				spec.Envs = make(map[string]string)
			}
			spec.Envs[key] = value
		}
	}
	known := "name, image and environment"
	raw, err := os.ReadFile(o.Paths.GuestBoot(d.SandboxID))
	boot := new(guestv1.BootConfig)
	if err == nil && proto.Unmarshal(raw, boot) == nil {
		known = "name, image, environment and command"
		if !slices.Equal(boot.GetCommand(), slices.Concat(d.Image.Entrypoint, d.Image.Cmd)) {
			spec.Command = boot.GetCommand()
		}
	}
	return spec, fmt.Sprintf("Its %s are known; its labels, services, limits, time-outs and revival policy are lost.", known)
}
