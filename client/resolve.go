package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Candidates returns what a text means: the sandbox, exec or agent with that id, and the one
// with that name; if there is neither, those whose ids begin with it. An exec may also be
// SANDBOX/EXEC. Nothing is ErrNotFound. All other calls take ids only.
func (c *Client) Candidates(ctx context.Context, kind agboxv1.RefKind, text string) (*agboxv1.ResolveResponse, error) {
	out, err := c.sandboxes.Resolve(ctx, &agboxv1.ResolveRequest{Kind: kind, Text: text}, idempotent)
	if e, ok := errors.AsType[*Error](err); ok && e.Code == codes.Unimplemented {
		return c.candidatesOfOlder(ctx, kind, text)
	}
	return out, err
}

// Resolve is Candidates for a text that must mean one thing. Otherwise the error has the
// reason SANDBOX_AMBIGUOUS, EXEC_AMBIGUOUS or AGENT_AMBIGUOUS and names the candidates. The
// match says whether the text is only the beginning of the id: a program should change
// nothing then.
func (c *Client) Resolve(ctx context.Context, kind agboxv1.RefKind, text string) (*agboxv1.Referent, error) {
	out, err := c.Candidates(ctx, kind, text)
	if err != nil {
		return nil, err
	}
	return Only(kind, text, out)
}

// Only returns the one thing that a text means, or the error of Resolve.
func Only(kind agboxv1.RefKind, text string, out *agboxv1.ResolveResponse) (*agboxv1.Referent, error) {
	list := out.GetReferents()
	if len(list) == 1 {
		return list[0], nil
	}
	things, reason := "sandboxes", agboxv1.ErrorReason_SANDBOX_AMBIGUOUS
	switch kind {
	case agboxv1.RefKind_REF_KIND_EXEC:
		things, reason = "execs", agboxv1.ErrorReason_EXEC_AMBIGUOUS
	case agboxv1.RefKind_REF_KIND_AGENT:
		things, reason = "agents", agboxv1.ErrorReason_AGENT_AMBIGUOUS
	}
	var ids []string
	for _, r := range list {
		ids = append(ids, r.GetId()+named(r))
	}
	if out.GetMore() {
		ids = append(ids, "...")
	}
	return nil, &Error{Code: codes.InvalidArgument, Reason: reason.String(), Message: fmt.Sprintf(
		"%q fits several %s: %s. Give the whole id of the one that is meant.", text, things, strings.Join(ids, ", "))}
}

// named says what a referent is called and where it is, in parentheses.
func named(r *agboxv1.Referent) string {
	var words []string
	if r.GetName() != "" {
		words = append(words, r.GetName())
	}
	if r.GetSandboxId() != "" {
		words = append(words, "in "+r.GetSandboxId())
	}
	if len(words) == 0 {
		return ""
	}
	return " (" + strings.Join(words, " ") + ")"
}

// candidatesOfOlder asks a daemon that has no Resolve: all its calls take names and prefixes.
func (c *Client) candidatesOfOlder(ctx context.Context, kind agboxv1.RefKind, text string) (*agboxv1.ResolveResponse, error) {
	var r agboxv1.Referent
	switch kind {
	case agboxv1.RefKind_REF_KIND_SANDBOX:
		out, err := c.GetSandbox(ctx, text)
		if err != nil {
			return nil, err
		}
		r.Id, r.Name = out.GetSandbox().GetSandboxId(), out.GetSandbox().GetName()
	case agboxv1.RefKind_REF_KIND_EXEC:
		e, err := c.GetExec(ctx, text)
		if err != nil {
			return nil, err
		}
		r.Id, r.Name, r.SandboxId = e.GetExecId(), e.GetName(), e.GetSandboxId()
		text = text[strings.Index(text, "/")+1:]
	default:
		a, err := c.GetAgent(ctx, text)
		if err != nil {
			return nil, err
		}
		r.Id, r.Name = a.GetAgentId(), a.GetName()
	}
	switch text {
	case r.GetId():
		r.Match = agboxv1.RefMatch_REF_MATCH_ID
	case r.GetName():
		r.Match = agboxv1.RefMatch_REF_MATCH_NAME
	default:
		r.Match = agboxv1.RefMatch_REF_MATCH_PREFIX
	}
	return &agboxv1.ResolveResponse{Referents: []*agboxv1.Referent{&r}}, nil
}
