package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
)

// Doctor compares the daemon's records with the engine and its files. With fix set the
// daemon also performs the actions. Such a call is not repeated if its answer is lost,
// because a second answer would not report what the first call did.
func (c *Client) Doctor(ctx context.Context, fix bool) (*agboxv1.DoctorResponse, error) {
	r := idempotent
	if fix {
		r = atMostOnce
	}
	return unary(ctx, c, agboxv1.SandboxServiceClient.Doctor, &agboxv1.DoctorRequest{Fix: fix}, r)
}

// AdoptEngine is Doctor after the engine that answers was accepted as the one of the
// install, although it may have none of its containers. What it does not have is lost, except
// commands whose container has a living first process. It changes nothing if that is the
// engine of the install.
func (c *Client) AdoptEngine(ctx context.Context, fix bool) (*agboxv1.DoctorResponse, error) {
	return unary(ctx, c, agboxv1.SandboxServiceClient.Doctor, &agboxv1.DoctorRequest{Fix: fix, AdoptEngine: true}, atMostOnce)
}

// DoctorOffline examines the install that the environment names while no daemon runs, and
// reports why a daemon cannot start. With fix set it adopts the sandboxes of a lost
// database. It runs "agboxd doctor".
func DoctorOffline(ctx context.Context, config DaemonConfig, fix bool) (*agboxv1.DoctorResponse, error) {
	if config.Binary == "" {
		var err error
		if config.Binary, err = FindDaemon(); err != nil {
			return nil, err
		}
	}
	args := []string{"doctor"}
	if fix {
		args = append(args, "--fix")
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, config.Binary, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ended(ctx.Err())
		}
		return nil, doctorFailed(err, stderr.String())
	}
	out := new(agboxv1.DoctorResponse)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(stdout.Bytes(), out); err != nil {
		return nil, &Error{Code: codes.Internal, Message: fmt.Sprintf(
			"agbox cannot read the output of %s (%v). Install agbox and agboxd of the same version.", config.Binary, err)}
	}
	return out, nil
}

// doctorFailed returns the last sentence that agboxd has written.
func doctorFailed(err error, stderr string) error {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	sentence := strings.TrimPrefix(lines[len(lines)-1], "agboxd: ")
	if sentence == "" || !errors.As(err, new(*exec.ExitError)) {
		sentence = fmt.Sprintf("agboxd cannot inspect the install: %v.", err)
	}
	return &Error{Code: codes.Unavailable, Message: sentence, cause: ErrDaemonUnreachable}
}
