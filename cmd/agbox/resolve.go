package main

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// purpose is what a command does with what a person has named.
type purpose bool

const (
	reads   purpose = false
	changes purpose = true
)

const (
	ofSandbox = agboxv1.RefKind_REF_KIND_SANDBOX
	ofExec    = agboxv1.RefKind_REF_KIND_EXEC
	ofAgent   = agboxv1.RefKind_REF_KIND_AGENT
)

// sandbox returns the id of the sandbox that a text means.
func (a *app) sandbox(ctx context.Context, c *client.Client, text string, to purpose) (string, error) {
	return a.resolve(ctx, c, ofSandbox, text, to)
}

// agent returns the id of the agent that a text means.
func (a *app) agent(ctx context.Context, c *client.Client, text string, to purpose) (string, error) {
	return a.resolve(ctx, c, ofAgent, text, to)
}

// resolved returns the ids that texts mean. An empty text stays empty.
func (a *app) resolved(ctx context.Context, c *client.Client, kind agboxv1.RefKind, texts []string, to purpose) ([]string, error) {
	ids := make([]string, len(texts))
	for i, text := range texts {
		if text == "" {
			continue
		}
		var err error
		if ids[i], err = a.resolve(ctx, c, kind, text, to); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (a *app) resolve(ctx context.Context, c *client.Client, kind agboxv1.RefKind, text string, to purpose) (string, error) {
	out, err := c.Candidates(ctx, kind, text)
	if err != nil {
		return "", err
	}
	return a.choose(kind, text, out, to)
}

// choose returns the id that a text means. What has the text as its id is always what a
// command reads. A command that changes something takes the beginning of an id only if a
// person types and sees which one it is.
func (a *app) choose(kind agboxv1.RefKind, text string, out *agboxv1.ResolveResponse, to purpose) (string, error) {
	if list := out.GetReferents(); to == reads && len(list) > 0 && list[0].GetMatch() == agboxv1.RefMatch_REF_MATCH_ID {
		return list[0].GetId(), nil
	}
	watched := a.terminal() != nil && a.width() > 0
	r, err := client.Only(kind, text, out)
	if err != nil && !watched && !slices.ContainsFunc(out.GetReferents(), func(r *agboxv1.Referent) bool { return r.GetMatch() != agboxv1.RefMatch_REF_MATCH_PREFIX }) {
		err = beginning{err, text}
	}
	if err != nil || to == reads || whole(r) {
		return r.GetId(), err
	}
	is := fmt.Sprintf("%s is the beginning of an id, that of %s", printable(text), described(kind, r))
	if r.GetMatch() == agboxv1.RefMatch_REF_MATCH_NEWEST {
		is = fmt.Sprintf("Several that have ended are called %s, and the newest is %s", printable(text), described(kind, r))
	}
	if !watched {
		err = &client.Error{Code: codes.InvalidArgument, Reason: agboxv1.ErrorReason_INVALID_REQUEST.String(), Message: fmt.Sprintf(
			"%s. Without a terminal, a command that changes something takes only a whole id or a name: give %s.", is, r.GetId())}
		if r.GetMatch() == agboxv1.RefMatch_REF_MATCH_PREFIX {
			err = beginning{err, text}
		}
		return "", err
	}
	a.say("%s.", is)
	return r.GetId(), nil
}

// beginning is the error for a text that is no id and no name, and only begins ids.
type beginning struct {
	error
	text string
}

func (b beginning) Unwrap() error { return b.error }

// whole reports whether a text was the id or the name of what it means.
func whole(r *agboxv1.Referent) bool {
	return r.GetMatch() == agboxv1.RefMatch_REF_MATCH_ID || r.GetMatch() == agboxv1.RefMatch_REF_MATCH_NAME
}

func described(kind agboxv1.RefKind, r *agboxv1.Referent) string {
	text := map[agboxv1.RefKind]string{ofSandbox: "sandbox ", ofExec: "command ", ofAgent: "agent "}[kind] + r.GetId()
	if r.GetName() != "" {
		text += " (" + printable(r.GetName()) + ")"
	}
	return text
}
