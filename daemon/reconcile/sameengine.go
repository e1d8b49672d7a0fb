package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/runtime"
)

// That an engine does not have a container means that it was removed only if the engine is
// the one that had it. So the install makes a mark in its engine and knows its random name.
// Before a verb, the mark must have been seen since the engine may last have been replaced:
// since the start of the daemon, or since a call or the stream of events last failed. After
// a look that shows no container, it must still be there. An engine that is not the
// install's is treated like one that does not answer: nothing is changed in it, and nothing
// is concluded from what it says.
//
// The engine of the install may lose containers too, or be adopted without them. So a primary
// counts as running while its first process lives (findStray).

// judgement says what an engine without the mark of the install is.
type judgement int

const (
	// engineAnother is not the engine of the install, or has lost its data.
	engineAnother judgement = iota
	// engineSame is the engine of the install. Only the mark was removed.
	engineSame
	// engineNew becomes the engine of the install: nothing is lost by that.
	engineNew
)

// judge judges an engine without the mark. known is the identity of the install's engine, or
// nil before the first contact. has means that the engine has a container of a sandbox of
// the install, expected is how many sandboxes must have one, and atStake how many of these
// run something or have agents that go on.
func judge(known *storev1.Engine, info runtime.EngineInfo, has bool, expected, atStake int) judgement {
	same := known != nil && known.GetId() == info.ID && known.GetRoot() == info.Root
	switch {
	case known == nil && has, expected == 0:
		return engineNew
	case same && (has || atStake == 0):
		// Somebody removed all that no container and no process uses. If it has lost its data
		// instead, sandboxes at rest stay as they are until somebody starts them.
		return engineSame
	}
	// An engine of the past may still have our containers: they are no proof.
	return engineAnother
}

// sameEngine returns nil if the engine was seen to be the install's since it may last have
// been replaced. Otherwise it looks, unless the engine is known to be another one. The next
// resync looks again at that one.
func (l *Loop) sameEngine(ctx context.Context) error {
	l.mu.Lock()
	same, err := l.same, l.health.Err
	l.mu.Unlock()
	switch {
	case same:
		return nil
	case isAnother(err):
		return err
	}
	return l.identify(ctx)
}

// stillSame confirms what follows from the absence of something in an answer of the engine:
// another one may have given it.
func (l *Loop) stillSame(ctx context.Context) error { return l.identify(ctx) }

func isAnother(err error) bool {
	return fault.ReasonOf(err) == agboxv1.ErrorReason_ENGINE_CHANGED
}

// identify looks whether the engine is the install's, and fails with ENGINE_CHANGED if it is
// another one.
func (l *Loop) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	l.mu.Lock()
	doubts := l.doubts
	l.mu.Unlock()
	known, err := l.opts.Identities.Engine(ctx)
	if err != nil {
		return err
	}
	if known != nil {
		marked, err := l.engine.Marked(ctx, l.opts.InstallID, known.GetMark())
		if err != nil {
			return err
		}
		if marked {
			l.identified(doubts)
			return nil
		}
	}
	if err := l.identifyUnmarked(ctx); err != nil {
		if isAnother(err) {
			l.heardOfAnother(err)
		}
		return err
	}
	l.identified(doubts)
	return nil
}

// identifyUnmarked identifies an engine that did not have the mark just now. One caller at a
// time does: two that adopted it at once could each remove the mark that the other recorded.
func (l *Loop) identifyUnmarked(ctx context.Context) error {
	if err := l.beginMarking(ctx); err != nil {
		return err
	}
	defer l.endMarking()
	known, err := l.opts.Identities.Engine(ctx)
	if err != nil {
		return err
	}
	if known != nil {
		if marked, err := l.engine.Marked(ctx, l.opts.InstallID, known.GetMark()); err != nil || marked {
			return err
		}
	}
	info, err := l.engine.Info(ctx)
	if err != nil {
		return err
	}
	nonces, expected, atStake := l.expected(known)
	has := false
	if expected > 0 { // an earlier look may be one at another engine
		all, err := l.engine.Inventory(ctx, l.opts.InstallID)
		if err != nil {
			return err
		}
		has = slices.ContainsFunc(all.Containers, func(c runtime.Container) bool {
			nonce, living := nonces[c.SandboxID]
			return living && nonce == c.Nonce
		})
	}
	switch judge(known, info, has, expected, atStake) {
	case engineSame:
		l.log.Warn("the mark of the install was removed from the engine; it is made again", "mark", known.GetMark())
		return l.mark(ctx, known.GetMark())
	case engineNew:
		return l.adopt(ctx, info)
	}
	return l.another(known, info, expected)
}

// expected returns the nonces of all sandboxes by id, how many of these must have a
// container, and how many of those lose something if the engine does not have it.
func (l *Loop) expected(known *storev1.Engine) (nonces map[string]string, expected, atStake int) {
	nonces = make(map[string]string)
	for _, sb := range l.ledger.Sandboxes() {
		nonces[sb.ID] = sb.Nonce
		if !l.mustHaveContainer(sb, known) {
			continue
		}
		expected++
		if sb.State == machine.Pending || sb.State == machine.Ready || l.hasLivingAgent(sb.ID) {
			atStake++
		}
	}
	return nonces, expected, atStake
}

// mustHaveContainer reports whether the engine must have a container of a sandbox, unless
// somebody has removed it. One that is being made may have none yet.
func (l *Loop) mustHaveContainer(sb ledger.Sandbox, known *storev1.Engine) bool {
	if sb.State == machine.Pending {
		// Before the first contact no container was made, unless by a daemon without this check.
		return sb.WasReady || sb.Furnished || known != nil && sb.Inherited > 0 || len(l.remembered(sb)) > 0
	}
	return sb.WasReady && !sb.Missing() // that it is missing was concluded when the engine was known
}

// another is the error for an engine that is not the install's.
func (l *Loop) another(known *storev1.Engine, info runtime.EngineInfo, expected int) error {
	why := "it is another one, or has lost its data"
	switch {
	case known == nil:
	case known.GetId() != info.ID:
		why = fmt.Sprintf("it is another one, with the id %s instead of %s", info.ID, known.GetId())
	case known.GetRoot() != info.Root:
		why = fmt.Sprintf("it has its data in %s instead of %s", info.Root, known.GetRoot())
	default:
		why = "it has lost its data, or all of them were removed"
	}
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_CHANGED,
		"The engine at %s has nothing of this install, of which %d sandboxes must have containers: %s. agbox changes nothing until the right engine is back. "+
			"\"agboxd config\" shows where its address comes from. If this engine is to be used from now on, run \"agbox doctor --adopt-engine\": what is not in it is lost.",
		l.opts.EngineAddress, expected, why)
}

// beginMarking waits until no other goroutine adopts or marks an engine. endMarking must
// follow.
func (l *Loop) beginMarking(ctx context.Context) error {
	select {
	case l.marking <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *Loop) endMarking() { <-l.marking }

// adopt makes the engine that of the install, between beginMarking and endMarking. A mark of
// the past must not be found again. The mark is made before it is recorded: after a crash in
// between, the engine is adopted again, instead of being another one that lacks its mark.
func (l *Loop) adopt(ctx context.Context, info runtime.EngineInfo) error {
	mark := ids.New()
	if err := l.engine.Unmark(ctx, l.opts.InstallID); err != nil {
		l.log.Warn("marks of the past cannot be removed from the engine", "error", err)
	}
	if err := l.mark(ctx, mark); err != nil {
		return err
	}
	if err := l.opts.Identities.SetEngine(ctx, &storev1.Engine{Mark: mark, Id: info.ID, Root: info.Root}); err != nil {
		return err
	}
	l.log.Info("this is the engine of the install from now on", "engine_id", info.ID, "root", info.Root, "address", l.opts.EngineAddress)
	return nil
}

// mark makes the mark. Without it our containers tell who the engine is, so a failure
// matters only if the engine does not answer.
func (l *Loop) mark(ctx context.Context, mark string) error {
	err := l.engine.Mark(ctx, l.opts.InstallID, mark)
	if err != nil && ctx.Err() == nil && !errdefs.IsUnavailable(err) {
		l.log.Warn("the engine cannot be marked as the one of this install", "error", err)
		return nil
	}
	return err
}

// AdoptEngine makes the engine that answers that of the install, although it may have none of
// its containers. It does nothing to the engine of the install.
func (l *Loop) AdoptEngine(ctx context.Context) error {
	err := l.identify(ctx)
	if !isAnother(err) {
		return err
	}
	info, err := l.engine.Info(ctx)
	if err != nil {
		return err
	}
	if err := l.beginMarking(ctx); err != nil {
		return err
	}
	defer l.endMarking()
	if err := l.adopt(ctx, info); err != nil {
		return err
	}
	l.heardOfEngine(l.now(), info, nil)
	l.doubtEngine()
	poke(l.poked)
	return nil
}

// identified records that the engine is the install's, if nothing has cast doubt on it since.
func (l *Loop) identified(doubts uint64) {
	l.mu.Lock()
	fresh := !l.same && l.doubts == doubts
	l.same = l.doubts == doubts
	l.mu.Unlock()
	if fresh && l.opts.EngineIdentified != nil {
		l.opts.EngineIdentified()
	}
}

// heardOfAnother records that another engine answers.
func (l *Loop) heardOfAnother(err error) {
	l.mu.Lock()
	before := l.health.Err
	l.health.Known, l.health.Err = true, err
	l.doubtEngineLocked()
	l.mu.Unlock()
	if !isAnother(before) {
		l.log.Error("the engine is not the one of this install; nothing is changed in it", "error", err)
	}
}

// keepIdentity records what the engine of the install calls itself now: an update of the
// engine may change it.
func (l *Loop) keepIdentity(ctx context.Context, info runtime.EngineInfo) {
	known, err := l.opts.Identities.Engine(ctx)
	if err != nil || known == nil || known.GetId() == info.ID && known.GetRoot() == info.Root {
		return
	}
	known.Id, known.Root = info.ID, info.Root
	if err := l.opts.Identities.SetEngine(ctx, known); err != nil {
		l.log.Warn("the identity of the engine cannot be recorded", "error", err)
	}
}

// probeTimeout bounds the check whether the engine answers.
const probeTimeout = 3 * time.Second

// Probe reports whether the engine is usable now, and the install's. If it is known to be
// healthy, Probe makes no call.
func (l *Loop) Probe(ctx context.Context) error {
	if l.engineKnown() {
		return l.sameEngine(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	begun := l.now()
	err := l.engine.Ping(ctx)
	if err == nil {
		err = l.identify(ctx)
	}
	if isAnother(err) {
		return err
	}
	l.heardOfEngine(begun, runtime.EngineInfo{}, err)
	return err
}
