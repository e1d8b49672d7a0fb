// Package docker adapts a Docker Engine, 20.10 or newer, to the types of package
// runtime. No other package knows the names, labels, options and errors of the
// engine's API.
//
// Every method takes its deadline from the context and is safe for concurrent use.
// A method that fails with errdefs.ErrUnavailable may have taken effect. All
// methods are idempotent: called again, they find the result of an earlier call.
package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/process"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// Options say which engine to use and how. The zero value suits an ordinary machine.
type Options struct {
	// Host is the engine's address, for example "unix:///var/run/docker.sock" or
	// "tcp://127.0.0.1:2375". Empty means DOCKER_HOST, or the default socket if that
	// is not set. The TLS variables of the docker command apply too.
	Host string
	// SubnetRanges are the IPv4 ranges for the networks of sandboxes, in order of
	// preference. A network gets a /28, or a larger subnet if it has many
	// containers. Empty means private ranges that are seldom routed.
	SubnetRanges []netip.Prefix
	// ConfigDir is the directory of the docker command's config.json, which has the
	// credentials for registries. Empty means DOCKER_CONFIG, or ~/.docker if that is
	// not set.
	ConfigDir string
}

// Engine is one Docker Engine.
type Engine struct {
	host    string
	config  string
	subnets pool
	// pulls has the pulls in progress. All that pull the same image share one.
	pulls runtime.Shared[runtime.ImageRequest, runtime.PullProgress]
	// routed returns the prefixes that the host already uses.
	routed func() []netip.Prefix
	// current is the client with a negotiated API version. It is nil before the
	// first call and after a lost connection, because the next engine on the same
	// address may have another version.
	current atomic.Pointer[client.Client]
	// filtering is what the engine said about seccomp; nil before the first question.
	filtering atomic.Pointer[filtering]
}

// New returns an engine without connecting to it. It fails with
// errdefs.ErrInvalidArgument if the host or a range is invalid.
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

// Close waits for pulls in progress and closes idle connections. It does not end
// other calls; the caller must cancel their contexts.
func (e *Engine) Close() error {
	e.pulls.Wait()
	if cli := e.current.Swap(nil); cli != nil {
		return cli.Close()
	}
	return nil
}

// Ping checks that the engine answers. It fails with errdefs.ErrUnavailable if it
// does not. Unlike Info, it does not make the engine start processes.
func (e *Engine) Ping(ctx context.Context) error {
	return e.call(ctx, "answer", func(cli *client.Client) error {
		_, err := pinged(ctx, cli)
		return err
	})
}

// pinged returns the answer to a ping. It fails if the answer does not come from
// an engine.
func pinged(ctx context.Context, cli *client.Client) (types.Ping, error) {
	ping, err := cli.Ping(ctx)
	if err == nil && ping.APIVersion == "" {
		err = errNotAnEngine
	}
	return ping, err
}

// Info returns the engine's version, the memory of its host, and who root in containers is
// there. It fails with errdefs.ErrUnavailable if the engine does not answer.
func (e *Engine) Info(ctx context.Context) (runtime.EngineInfo, error) {
	var info runtime.EngineInfo
	err := e.call(ctx, "say its version", func(cli *client.Client) error {
		v, err := cli.ServerVersion(ctx)
		if err != nil {
			return err
		}
		host, err := cli.Info(ctx)
		info = runtime.EngineInfo{Version: v.Version, APIVersion: cli.ClientVersion(), Memory: host.MemTotal, ID: host.ID, Root: host.DockerRootDir}
		info.RootUID, info.RootGID = remappedRoot(host)
		return err
	})
	return info, err
}

// Address returns the address of the engine, for example "unix:///var/run/docker.sock".
func (e *Engine) Address() string { return e.host }

// newClient returns a client that has not negotiated an API version.
func (e *Engine) newClient() (*client.Client, error) {
	scheme, _, _ := strings.Cut(e.host, "://")
	switch scheme {
	case "unix", "tcp", "http", "https", "npipe":
	default:
		return nil, errors.New("its scheme is not supported")
	}
	// Use a new connection for each call. An engine that is shutting down accepts no
	// new connections but serves the existing ones until all containers have ended.
	// Over an existing connection, those containers would look as if a user had
	// stopped them, and the engine would start them again, with mounts that it then
	// forgets. On a Unix socket a new connection costs next to nothing.
	transport := &http.Transport{DisableKeepAlives: true}
	return client.NewClientWithOpts(
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithTLSClientConfigFromEnv(),
		client.WithHost(e.host),
		client.WithVersionFromEnv(),
	)
}

// negotiated returns the current client, or a new one after a ping. It does not
// use the client library's own negotiation, which treats a failed ping as a very
// old engine and never negotiates again.
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
	_ = cli.Close() // a concurrent call was faster
	return e.negotiated(ctx)
}

// forget makes the next call negotiate again.
func (e *Engine) forget(cli *client.Client) {
	e.current.CompareAndSwap(cli, nil)
	_ = cli.Close()
}

// call runs f with a negotiated client and classifies its error. Messages use verb
// after "Docker could not". If the engine refuses the API version, call negotiates
// again and runs f a second time: the engine was replaced by another version, and
// the first attempt had no effect.
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

// errNotAnEngine means that the answer to a ping had no API version.
var errNotAnEngine = errors.New("the answer does not come from a Docker engine")

// maxEngineText bounds a quoted message of the engine, in bytes.
const maxEngineText = 500

// classify gives err its class, and a plain sentence if a person must act. NotFound
// and Conflict get no sentence, because only the callers know what they mean.
func (e *Engine) classify(verb string, err error) error {
	switch {
	case fault.Of(err) != nil:
		return err
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("docker: %s: %w: %w", verb, errdefs.ErrUnavailable, err)
	case errors.Is(err, context.DeadlineExceeded):
		return e.unavailable(err, "Docker did not %s in time on %s: if 'docker info' hangs too, restart Docker.", verb, e.host)
	case versionRefused(err):
		return e.unavailable(err, "Docker on %s does not support the API version of agbox (%s): unset DOCKER_API_VERSION, or update Docker to 20.10 or newer.",
			e.host, engineText(err))
	case client.IsErrConnectionFailed(err), errors.Is(err, errNotAnEngine):
		return e.unreachable(err)
	case brokenReply(err), errdefs.IsUnavailable(err):
		return e.unavailable(err, "The connection to Docker on %s was lost: check that Docker is running, and try again.", e.host)
	case errdefs.IsNotFound(err), errdefs.IsConflict(err):
		return fmt.Errorf("docker: %s: %w", verb, err)
	case errdefs.IsInvalidArgument(err):
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"Docker refused to %s: %s.", verb, engineText(err)).Because(err)
	}
	return engineFailed(verb, err)
}

func (e *Engine) unavailable(cause error, format string, args ...any) error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, format, args...).Because(cause)
}

func engineFailed(verb string, err error) error {
	if text := err.Error(); strings.Contains(text, "no space left on device") || strings.Contains(text, "disk quota exceeded") {
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_FILE_SYSTEM_FULL,
			"Docker could not %s, because its disk is full (%s): free some space, for example with 'docker system prune', and try again.",
			verb, engineText(err)).Because(err)
	}
	why := ""
	if full := process.Crowded(); full != "" { // an engine elsewhere has limits of its own
		why = " It may be for this: " + full
	}
	return fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_ENGINE_FAILED,
		"Docker could not %s: %s.%s", verb, engineText(err), why).Because(err)
}

// unreachable explains a failed connection. The client library hides why a Unix
// socket cannot be reached, so the socket file is examined here.
func (e *Engine) unreachable(err error) error {
	path, local := strings.CutPrefix(e.host, "unix://")
	if local {
		_, statErr := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrPermission), errors.Is(statErr, fs.ErrPermission):
			return e.unavailable(err, "You have no permission to use Docker on %s: join its group with 'sudo usermod -aG docker $USER' and log in again.", e.host)
		case errors.Is(statErr, fs.ErrNotExist):
			return e.unavailable(err, "Docker is not running (%s does not exist): install Docker, or start it with 'sudo systemctl start docker', or set the address of another one as \"engine\" in agboxd.yaml.", path)
		}
	}
	return e.unavailable(err, "Docker does not answer on %s: start it with 'sudo systemctl start docker', or set its address as \"engine\" in agboxd.yaml.", e.host)
}

// versionRefused reports whether the engine refused the API version of a call. It
// has no status of its own for that; the message has been the same since 1.13.
func versionRefused(err error) bool {
	text := err.Error()
	return strings.Contains(text, "client version") &&
		(strings.Contains(text, "is too new") || strings.Contains(text, "is too old"))
}

// brokenReply reports whether the connection to the engine, or to a proxy before
// it, broke in the middle of an answer.
func brokenReply(err error) bool {
	var netErr net.Error
	var syntax *json.SyntaxError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &netErr) || errors.As(err, &syntax)
}

// engineText returns the engine's own message in a form that fits into a sentence.
func engineText(err error) string {
	text := strings.TrimPrefix(err.Error(), "Error response from daemon: ")
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxEngineText {
		text = strings.ToValidUTF8(text[:maxEngineText], "") + "..."
	}
	return strings.TrimRight(text, ". ")
}

// remappedRoot returns the host's ids of root in containers. An engine with userns-remap
// has a data directory of its own for each range of ids, named after the first ids of the
// range, for example /var/lib/docker/165536.165536. It tells them nowhere else.
func remappedRoot(info system.Info) (uid, gid int) {
	if !slices.Contains(info.SecurityOptions, "name=userns") {
		return 0, 0
	}
	if _, err := fmt.Sscanf(path.Base(info.DockerRootDir), "%d.%d", &uid, &gid); err != nil {
		return 0, 0
	}
	return uid, gid
}

// filtering is what an engine says about seccomp.
type filtering struct {
	// cli is the client that asked. After a lost connection there is a new one.
	cli *client.Client
	// builtin is true if the engine filters with the profile that it was built with. An
	// engine whose kernel cannot filter would refuse a profile, and a profile that the
	// operator gave the engine stays in force.
	builtin bool
}
