package server

import (
	"context"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
)

// Resolve returns what a text means. It is the only call that takes names and beginnings of
// ids of sandboxes, execs and agents.
func (s *sandboxCalls) Resolve(ctx context.Context, req *agboxv1.ResolveRequest) (*agboxv1.ResolveResponse, error) {
	if err := mayMean(req.GetKind(), req.GetText()); err != nil {
		return nil, err
	}
	list, err := s.ledger.Resolve(ctx, req.GetKind(), req.GetText())
	if err != nil {
		return nil, err
	}
	n := min(len(list), ledger.MaxReferents)
	return &agboxv1.ResolveResponse{Referents: list[:n], More: len(list) > n}, nil
}

var things = map[agboxv1.RefKind]string{
	agboxv1.RefKind_REF_KIND_SANDBOX: "a sandbox", agboxv1.RefKind_REF_KIND_EXEC: "an exec", agboxv1.RefKind_REF_KIND_AGENT: "an agent",
}

// mayMean refuses a text that can be no id, no name and no beginning of an id.
func mayMean(kind agboxv1.RefKind, text string) error {
	if text == "" {
		return invalid("Give %s: its id, the beginning of its id, or its name.", things[kind])
	}
	switch kind {
	case agboxv1.RefKind_REF_KIND_AGENT:
		if len(text) > ids.MaxLen {
			return invalid("An agent has an id of at most %d characters.", ids.MaxLen)
		}
	case agboxv1.RefKind_REF_KIND_SANDBOX:
		if !ids.Valid(text) {
			return invalid("%.80q is not an id or a name: letters, digits, '_', '.' and '-', beginning with a letter or digit, at most 200 characters.", text)
		}
	case agboxv1.RefKind_REF_KIND_EXEC:
		sandbox, exec, within := strings.Cut(text, "/")
		if !ids.Valid(sandbox) || within && !ids.Valid(exec) {
			return invalid("%.80q is not a command: give its id, the beginning of it or its name, alone or as SANDBOX/NAME.", text)
		}
	}
	return nil
}
