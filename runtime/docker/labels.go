package docker

import (
	"github.com/docker/docker/api/types/filters"

	"github.com/agbox/agbox/runtime"
)

// The labels of everything that we make. All of them are always set, empty ones
// too: the LABELs of an image are merged into those of its containers, and what we
// set wins.
const (
	labelInstall = "agbox.install-id"
	labelSandbox = "agbox.sandbox-id"
	labelNonce   = "agbox.nonce"
	labelRole    = "agbox.role"
	labelService = "agbox.service"
)

func encodeLabels(id runtime.Identity) map[string]string {
	return map[string]string{
		labelInstall: id.InstallID,
		labelSandbox: id.SandboxID,
		labelNonce:   id.Nonce,
		labelRole:    string(id.Role),
		labelService: id.Service,
	}
}

// decodeLabels is false when a label is missing: then the object was not made by us.
// When it is true the labels may still be spoofed; the nonce decides.
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

// ownFilter selects an install's objects, those of one sandbox when sandboxID is
// not empty. The engine compares labels exactly, unlike names.
func ownFilter(installID, sandboxID string) filters.Args {
	args := filters.NewArgs(filters.Arg("label", labelInstall+"="+installID))
	if sandboxID != "" {
		args.Add("label", labelSandbox+"="+sandboxID)
	}
	return args
}
