// Package docker drives a Docker Engine, 20.10 or newer, in the words of package
// runtime. It alone knows names, labels, options and errors of the engine's API.
//
// Every method takes its deadline from the context and may be called from many
// goroutines. A verb that fails with errdefs.ErrUnavailable may have taken effect:
// look before you retry; all verbs find their own earlier work.
package docker

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Options say which engine to use and what it may take. The zero value is good
// for an ordinary machine.
type Options struct {
	// Host is where the engine listens, for example "unix:///var/run/docker.sock"
	// or "tcp://127.0.0.1:2375". Empty takes DOCKER_HOST, then the engine's default
	// socket. The TLS variables of the docker command apply to both.
	Host string
	// SubnetRanges are the IPv4 ranges from which sandbox networks take a /28 each,
	// tried in order. Empty takes private ranges that are seldom routed.
	SubnetRanges []netip.Prefix
	// ConfigDir is the folder of the docker command's config.json, which has the
	// credentials for registries. Empty takes DOCKER_CONFIG, then ~/.docker.
	ConfigDir string
}

// Engine is one Docker Engine.
type Engine struct {
	host    string
	config  string
	subnets pool
	pulls   pulls
	// routed tells which addresses the host uses already.
	routed func() []netip.Prefix
	// current has a negotiated API version. It is nil before the first call and
	// after a lost connection, so that whoever listens next is asked again.
	current atomic.Pointer[client.Client]
}

// New returns an engine without speaking to it. It fails with errdefs.ErrInvalidArgument
// when the host or a range makes no sense.
func New(opts Options) (*Engine, error) {
	host := opts.Host
	if host == "" {
		host = os.Getenv(client.EnvOverrideHost)
	}
	if host == "" {
		host = client.DefaultDockerHost
	}
	subnets, err := newPool(opts.SubnetRanges)
	if err != nil {
		return nil, err
	}
	e := &Engine{host: host, config: opts.ConfigDir, subnets: subnets, routed: func() []netip.Prefix { return nil }}
	if strings.HasPrefix(host, "unix://") {
		e.routed = hostPrefixes
	}
	cli, err := e.newClient()
	if err != nil {
		return nil, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"The Docker host %q cannot be used (%v); give it as unix:///path/to/docker.sock or tcp://host:port.", host, err).Because(err)
	}
	return e, cli.Close()
}

// Close lets go of idle connections. Calls that still run are ended by their contexts,
// and must be.
func (e *Engine) Close() error {
	e.pulls.wg.Wait()
	if cli := e.current.Swap(nil); cli != nil {
		return cli.Close()
	}
	return nil
}

// Ping asks whether the engine is there; errdefs.ErrUnavailable when it does not
// answer. Unlike Info it has the engine start no process of its own.
func (e *Engine) Ping(ctx context.Context) error {
	return e.call(ctx, "answer", func(cli *client.Client) error {
		_, err := pinged(ctx, cli)
		return err
	})
}

// pinged is the answer to a ping, if it comes from an engine.
func pinged(ctx context.Context, cli *client.Client) (types.Ping, error) {
	ping, err := cli.Ping(ctx)
	if err == nil && ping.APIVersion == "" {
		err = errNotAnEngine
	}
	return ping, err
}

// Info asks the engine who it is; errdefs.ErrUnavailable when it does not answer.
func (e *Engine) Info(ctx context.Context) (runtime.EngineInfo, error) {
	var info runtime.EngineInfo
	err := e.call(ctx, "say its version", func(cli *client.Client) error {
		v, err := cli.ServerVersion(ctx)
		info = runtime.EngineInfo{Version: v.Version, APIVersion: cli.ClientVersion()}
		return err
	})
	return info, err
}

// newClient makes a client that has not negotiated yet.
func (e *Engine) newClient() (*client.Client, error) {
	scheme, _, _ := strings.Cut(e.host, "://")
	switch scheme {
	case "unix", "tcp", "http", "https", "npipe":
	default:
		return nil, errors.New("its scheme is not supported")
	}
	// An engine that is being stopped listens no more but serves the connections that it
	// has, until all containers have ended: it would show us their ends as if somebody
	// had stopped them, and start them once more, with mounts that it then forgets. On a
	// Unix socket a connection for each call costs next to nothing.
	transport := &http.Transport{DisableKeepAlives: true}
	return client.NewClientWithOpts(
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithTLSClientConfigFromEnv(),
		client.WithHost(e.host),
		client.WithVersionFromEnv(),
	)
}

// negotiated returns the current client, or a new one after a ping. The client's
// own negotiation is not used: it takes a failed ping for a very old engine and
// never asks again.
func (e *Engine) negotiated(ctx context.Context) (*client.Client, error) {
	if cli := e.current.Load(); cli != nil {
		return cli, nil
	}
	cli, err := e.newClient()
	if err != nil {
		return nil, err
	}
	ping, err := pinged(ctx, cli)
	if err != nil {
		_ = cli.Close()
		return nil, err
	}
	cli.NegotiateAPIVersionPing(ping)
	if e.current.CompareAndSwap(nil, cli) {
		return cli, nil
	}
	_ = cli.Close() // another call was first
	return e.negotiated(ctx)
}

// forget makes the next call negotiate again.
func (e *Engine) forget(cli *client.Client) {
	e.current.CompareAndSwap(cli, nil)
	_ = cli.Close()
}

// call runs f with a negotiated client and classifies its error. The verb stands
// in sentences after "Docker could not". f runs a second time when the engine
// refused the API version: it was replaced by another one, and has done nothing.
func (e *Engine) call(ctx context.Context, verb string, f func(*client.Client) error) error {
	for second := false; ; second = true {
		cli, err := e.negotiated(ctx)
		if err != nil {
			return e.classify(verb, err)
		}
		err = f(cli)
		if err == nil {
			return nil
		}
		refused := versionRefused(err)
		err = e.classify(verb, err)
		if refused || errdefs.IsUnavailable(err) && ctx.Err() == nil {
			e.forget(cli)
		}
		if !refused || second {
			return err
		}
	}
}
