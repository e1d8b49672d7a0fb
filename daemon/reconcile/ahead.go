package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// errStale means that a sandbox was made ahead of an image that its name does not mean any more, or is not
// what was prepared any more.
var errStale = errors.New("its image has changed, or it has ended since it was prepared")

// Fit reports whether a sandbox that was made ahead can be handed out for a request: it runs, is linked, and
// its images are those that their names mean now. One of an older image is removed.
func (l *Loop) Fit(ctx context.Context, sb ledger.Sandbox, want *agboxv1.CreateSpec) bool {
	if !machine.Legal(sb.Record, agboxv1.EventType_SANDBOX_ACCEPTED) || l.Condition(sb) != (Condition{}) || !l.links.Connected(sb.ID) {
		return false
	}
	if why, fits := l.named(sb, want); !fits {
		l.Misfit(sb.Pool, why)
		return false
	}
	primary, image, err := l.lookAhead(ctx, sb)
	if errors.Is(err, errStale) {
		l.unstock(ctx, sb)
	}
	if err != nil || primary.State != runtime.StateRunning || primary.Nonce != sb.Nonce || primary.InstallID != l.opts.InstallID {
		return false
	}
	// What an image sets itself stays, and the supervisor would be told the name.
	if slices.ContainsFunc(image.Env, func(entry string) bool { return strings.HasPrefix(entry, "HOSTNAME=") }) {
		l.Misfit(sb.Pool, "Nobody gets anything of this pool, because its image sets HOSTNAME itself.")
		return false
	}
	l.Misfit(sb.Pool, "")
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.sandboxes[sb.ID]; w != nil {
		w.image = image
	}
	return true
}

// named reports whether the host name of a request can be given to a sandbox that was made ahead, and if not,
// why that lasts. Not each daemon may set that of a running container, and not each container has files for it.
func (l *Loop) named(sb ledger.Sandbox, want *agboxv1.CreateSpec) (why string, fits bool) {
	switch {
	case want.GetHostname() != "", want.GetName() == "":
		return "", true
	case sb.Spec.GetSecurity().GetReadOnlyRoot():
		why = "its root file system is read-only"
	default:
		err := l.links.SetHostname(sb.ID, sb.ID, sb.ID) // only a trial
		if err == nil || !errors.Is(err, os.ErrPermission) {
			return "", err == nil
		}
		why = "the daemon cannot set it: " + err.Error()
	}
	return fmt.Sprintf("Who gives a name gets nothing of this pool, because the host name of a running container cannot follow (%s): "+
		"set hostname in the pool and in the request, or create sandboxes without names.", why), false
}

// misfitShown is how long a pool says why requests get nothing of it.
const misfitShown = time.Hour

// Misfit notes why a request that fits a pool gets nothing of it; empty if one could.
func (l *Loop) Misfit(pool, why string) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.stocks[pool]; s != nil {
		s.misfit, s.misfitUntil = why, now.Add(misfitShown)
	}
}

// stale reports whether a sandbox that was made ahead is not what would be made now.
func (l *Loop) stale(ctx context.Context, sb ledger.Sandbox) bool {
	_, _, err := l.lookAhead(ctx, sb)
	return errors.Is(err, errStale)
}

// Unstock asks for the removal of a sandbox that was made ahead, unless somebody has it by now.
func (l *Loop) Unstock(ctx context.Context, sandboxID string) error {
	dropped, err := l.ledger.DropAhead(ctx, sandboxID)
	if err == nil && dropped {
		l.Interrupt(sandboxID)
	}
	return err
}

func (l *Loop) unstock(ctx context.Context, sb ledger.Sandbox) {
	if err := l.Unstock(ctx, sb.ID); err != nil && ctx.Err() == nil {
		l.log.Error("a sandbox that was made ahead cannot be removed", "sandbox_id", sb.ID, "error", err)
	}
}

// lookAhead looks at the containers of a sandbox that was made ahead, and at what the names of their images
// mean now. The error is errStale if an image is another one or gone, or if something that the commands of prepare
// had to do with was not there all the time.
func (l *Loop) lookAhead(ctx context.Context, sb ledger.Sandbox) (primary runtime.Container, image runtime.Image, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	parts := []*part{{of: sb.Spec, name: runtime.PrimaryName(sb.ID)}}
	required := machine.ServiceRules(sb.Spec)
	for i, s := range sb.Spec.GetServices() {
		parts = append(parts, &part{of: s, name: runtime.ServiceName(sb.ID, s.GetName()), optional: true, spare: !required[i].Required})
	}
	var looks errgroup.Group
	for _, p := range parts {
		looks.Go(func() error { return p.lookAtContainer(ctx, l.engine) })
		looks.Go(func() error { return p.lookAtImage(ctx, l.engine) })
	}
	if err := looks.Wait(); err != nil {
		return primary, image, err
	}
	if slices.ContainsFunc(parts, func(p *part) bool { return p.container.ID != "" && p.container.ImageID != p.image.ID }) ||
		len(sb.Spec.GetPrepare()) > 0 && slices.ContainsFunc(parts, func(p *part) bool { return !p.spare && p.endedSince(sb.ReadyAt) }) {
		return primary, image, errStale
	}
	return parts[0].container, parts[0].image, nil
}

// part is a container of a sandbox that was made ahead, and the image that its name means now.
type part struct {
	of   imaged
	name string
	// optional means that the container may be missing, and spare that the sandbox was READY without it.
	optional  bool
	spare     bool
	container runtime.Container
	image     runtime.Image
}

// endedSince reports whether a container was not there all the time since.
func (p *part) endedSince(at time.Time) bool {
	return p.container.ID == "" || p.container.StartedAt.After(at) || p.container.FinishedAt.After(at)
}

func (p *part) lookAtContainer(ctx context.Context, engine Engine) (err error) {
	if p.container, err = engine.InspectContainer(ctx, p.name); p.optional && errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

func (p *part) lookAtImage(ctx context.Context, engine Engine) (err error) {
	want := imageRequest(p.of)
	want.Policy = runtime.PullNever
	if p.image, err = engine.EnsureImage(ctx, want, nil); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// configure tells the supervisor of a sandbox that was made ahead whose it is, and starts its own command
// if nothing is to be copied in before. The environment may have secrets, so it is in no file.
func (l *Loop) configure(ctx context.Context, w *sandboxWork, sb ledger.Sandbox, o *machine.Observation) error {
	sb, err := l.ledger.Reveal(ctx, sb)
	if err != nil {
		return err
	}
	if !sb.WasReady && !sb.Furnished && !o.Configured { // afterwards its own command may run, by what was written
		if err := l.bootAnew(ctx, sb, o); err != nil {
			return err
		}
	}
	boot, err := readBoot(l.paths.GuestBoot(sb.ID))
	if err != nil {
		return l.unwritable(err)
	}
	// Unlike the environment of the container, it is not for the supervisor: it has the variables of Go too.
	env := envList(primaryEnv(sb.Spec))
	name := cmp.Or(sb.Spec.GetHostname(), hostname(sb))
	if name != sb.ID && sb.Spec.GetHostname() == "" { // the container was made when nobody had named it
		if err := l.links.SetHostname(sb.ID, sb.ID, name); err != nil {
			return fmt.Errorf("call the sandbox %s: %w", name, err)
		}
	}
	if _, own := primaryEnv(sb.Spec)["HOSTNAME"]; !own {
		env = append(env, "HOSTNAME="+name)
	}
	if err := l.links.Configure(ctx, sb.ID, boot, env, name); err != nil {
		return err
	}
	w.configuredFor, o.Configured = sb.PendingSequence, true
	if sb.WasReady || !commandWaits(sb) {
		return l.execs.Release(ctx, sb.ID)
	}
	return nil
}

// bootAnew writes the boot configuration of a sandbox that somebody has taken.
func (l *Loop) bootAnew(ctx context.Context, sb ledger.Sandbox, o *machine.Observation) error {
	info, err := l.engineInfo(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	image := l.sandboxes[sb.ID].image
	l.mu.Unlock()
	if image.ID == "" { // another daemon has handed it out
		if image, err = l.imageOf(ctx, o.Primary.ID); err != nil {
			return err
		}
	}
	home, err := l.home(ctx, sb, image, new(sandboxNetwork))
	if err != nil {
		return err
	}
	if err := overwriteBoot(l.paths.GuestBoot(sb.ID), l.bootOf(sb, image, home, info)); err != nil {
		return l.unwritable(err)
	}
	return nil
}
