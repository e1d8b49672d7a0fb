package reconcile

import (
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
)

// allowed returns why the operator's policy forbids to start a primary or a service that
// was made before; nil if it does not. The policy may be newer than the container.
func (l *Loop) allowed(of contained) error {
	bound := l.host.Bound()
	var names []string
	for _, field := range bound.Forbidden(of.GetSecurity(), of.GetGpus()) {
		names = append(names, strings.Join(field, "."))
	}
	if len(names) == 0 {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_INVALID_REQUEST,
		"The operator's policy %s forbids %s by now: remove the sandbox and create it again without, or ask the operator of this machine.",
		bound.File, strings.Join(names, ", "))
}
