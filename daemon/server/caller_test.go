package server

import (
	"context"
	"net"
	"os"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/proto/agbox/caller"
)

func TestClientsOfThePublishedContractAreToldApart(t *testing.T) {
	plain := &agboxv1.CreateSandboxRequest{SandboxId: "a", CreateSpec: &agboxv1.CreateSpec{
		Image: "x", Envs: map[string]string{"A": "b"}, Services: []*agboxv1.ServiceSpec{{Name: "db"}},
	}}
	with := func(change func(*agboxv1.CreateSandboxRequest)) *agboxv1.CreateSandboxRequest {
		req := proto.CloneOf(plain)
		change(req)
		return req
	}
	header := metadata.NewIncomingContext(t.Context(), metadata.Pairs(caller.Header, caller.Version))
	for name, tc := range map[string]struct {
		ctx  context.Context
		req  any
		want bool
	}{
		"published fields":             {t.Context(), plain, true},
		"a stream":                     {t.Context(), nil, true},
		"our header":                   {header, plain, false},
		"a stream with our header":     {header, nil, false},
		"a request key, without it":    {t.Context(), with(func(r *agboxv1.CreateSandboxRequest) { r.RequestKey = "k" }), false},
		"our field of the spec":        {t.Context(), with(func(r *agboxv1.CreateSandboxRequest) { r.CreateSpec.Name = "n" }), false},
		"our field of a companion":     {t.Context(), with(func(r *agboxv1.CreateSandboxRequest) { r.CreateSpec.Services[0].User = "u" }), false},
		"other metadata":               {metadata.NewIncomingContext(t.Context(), metadata.Pairs("user-agent", "x")), plain, true},
		"a call of another kind":       {t.Context(), &agboxv1.PingRequest{}, true},
		"our field of another request": {t.Context(), &agboxv1.StopSandboxRequest{Now: true}, false},
	} {
		if got := caller.Of(identified(tc.ctx, tc.req)).Published; got != tc.want {
			t.Errorf("%s: published is %t", name, got)
		}
	}
}

func TestTheHomeOfTheCallerIsThatOfItsUser(t *testing.T) {
	home := homeOf(os.Getuid())
	if home == "" {
		t.Fatal("this user has no home")
	}
	at := func(uid int) context.Context {
		return identified(peer.NewContext(t.Context(), &peer.Peer{Addr: callerAddr{new(net.UnixAddr), uid}}), nil)
	}
	const nobodys = 1<<31 - 7
	for name, tc := range map[string]struct {
		ctx        context.Context
		says, want string
	}{
		"who the kernel names":        {at(os.Getuid()), "", home},
		"the request's own comes 1st": {at(os.Getuid()), "/home/x", "/home/x"},
		"a user without an entry":     {at(nobodys), "", ""},
		"no peer":                     {t.Context(), "", ""},
	} {
		req := &agboxv1.CreateSandboxRequest{HomeDir: tc.says}
		if got := withHome(tc.ctx, req).GetHomeDir(); got != tc.want || req.GetHomeDir() != tc.says {
			t.Errorf("%s: %q, want %q; the request has %q now", name, got, tc.want, req.GetHomeDir())
		}
	}
}
