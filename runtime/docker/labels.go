package docker

import (
	"fmt"

	"github.com/docker/docker/api/types/filters"

	"github.com/agbox/agbox/runtime"
)

// The labels of every object that agbox creates. All of them are always set, even
// if empty: the engine merges the LABELs of an image into those of a container, and
// a label that we set takes precedence.
const (
	labelInstall = "agbox.install-id"
	labelSandbox = "agbox.sandbox-id"
	labelNonce   = "agbox.nonce"
	labelRole    = "agbox.role"
	labelService = "agbox.service"

	// labelLimits is set on containers only.
	labelLimits = "agbox.limits"
)

// limitsFormat is the form of labelLimits.
const limitsFormat = "memory=%d default=%t pids=%d"

// containerLabels returns the labels of a container. The limits are among them because a
// list of containers does not have them otherwise.
func containerLabels(spec runtime.ContainerSpec) map[string]string {
	labels, made := encodeLabels(spec.Identity), spec.Limits.Made()
	labels[labelLimits] = fmt.Sprintf(limitsFormat, made.Memory, made.MemoryByDefault, made.PIDs)
	return labels
}

// decodeLimits returns the zero value for a container of an older version.
func decodeLimits(labels map[string]string) runtime.MadeLimits {
	var made runtime.MadeLimits
	if _, err := fmt.Sscanf(labels[labelLimits], limitsFormat, &made.Memory, &made.MemoryByDefault, &made.PIDs); err != nil {
		return runtime.MadeLimits{}
	}
	return made
}

func encodeLabels(id runtime.Identity) map[string]string {
	return map[string]string{
		labelInstall: id.InstallID,
		labelSandbox: id.SandboxID,
		labelNonce:   id.Nonce,
		labelRole:    string(id.Role),
		labelService: id.Service,
	}
}

// decodeLabels returns false if a label is missing, which means that agbox did not
// create the object. Complete labels may still be spoofed; the nonce decides.
func decodeLabels(labels map[string]string) (runtime.Identity, bool) {
	for _, key := range []string{labelInstall, labelSandbox, labelNonce, labelRole, labelService} {
		if _, ok := labels[key]; !ok {
			return runtime.Identity{}, false
		}
	}
	return runtime.Identity{
		InstallID: labels[labelInstall],
		SandboxID: labels[labelSandbox],
		Nonce:     labels[labelNonce],
		Role:      runtime.Role(labels[labelRole]),
		Service:   labels[labelService],
	}, true
}

// ownFilter selects an install's objects, or those of one sandbox if sandboxID is
// not empty. The engine compares labels exactly, unlike names.
func ownFilter(installID, sandboxID string) filters.Args {
	args := filters.NewArgs(filters.Arg("label", labelInstall+"="+installID))
	if sandboxID != "" {
		args.Add("label", labelSandbox+"="+sandboxID)
	}
	return args
}
