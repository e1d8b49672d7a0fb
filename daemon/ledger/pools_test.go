package ledger

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// stocked makes a pool with sandboxes.
func stocked(t *testing.T, l *Ledger, members ...string) Pool {
	t.Helper()
	p, err := l.SetPool(t.Context(), "stack", len(members), stack("one"))
	for _, id := range members {
		if err == nil {
			_, err = l.CreateAhead(t.Context(), id, p.ID, stack("one"))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestNobodyFindsWhatWasMadeAhead: neither by its id nor in a list, until it is removed.
func TestNobodyFindsWhatWasMadeAhead(t *testing.T) {
	l, _ := open(t, t.TempDir())
	stocked(t, l, "member")
	_, found := l.FindSandbox(t.Context(), "member")
	_, deleted := l.RequestDelete(t.Context(), "member")
	_, stopped := l.RequestStop(t.Context(), "member", "")
	_, renamed := l.Rename(t.Context(), "member", "demo")
	for i, err := range []error{found, deleted, stopped, renamed} {
		if !errdefs.IsNotFound(err) {
			t.Errorf("call %d says %v", i, err)
		}
	}
	if all, err := l.Resolve(t.Context(), agboxv1.RefKind_REF_KIND_SANDBOX, "member"); err == nil {
		t.Errorf("it is found as %v", all)
	}
	if all := l.Owned(); len(all) > 0 {
		t.Errorf("it is listed: %v", all)
	}
	for _, first := range []bool{true, false} {
		if dropped, err := l.DropAhead(t.Context(), "member"); err != nil || dropped != first {
			t.Fatalf("it is dropped: %v, %v; want %v", dropped, err, first)
		}
	}
	if all := l.Owned(); len(all) != 1 {
		t.Errorf("while it is removed there is listed %v", all)
	}
}

// TestWhatWasMadeAheadIsFoundByTheIDOfTheRequest: who did not get the answer knows no other.
func TestWhatWasMadeAheadIsFoundByTheIDOfTheRequest(t *testing.T) {
	l, _ := open(t, t.TempDir())
	stocked(t, l, "member")
	emit(t, l, "member", agboxv1.EventType_SANDBOX_READY)
	if _, err := l.Take(t.Context(), "member", stack("one"), RequestKey{Key: "requested", Digest: []byte{1}, AnyID: true}); err != nil {
		t.Fatal(err)
	}
	if all, err := l.Resolve(t.Context(), agboxv1.RefKind_REF_KIND_SANDBOX, "requested"); err != nil || len(all) != 1 || all[0].GetId() != "member" {
		t.Errorf("it is found as %v, %v", all, err)
	}
	if again, repeated, err := l.RepeatedCreate(t.Context(), "requested", RequestKey{Key: "requested", Digest: []byte{1}, AnyID: true}); err != nil || !repeated || again.ID != "member" {
		t.Errorf("a repeated request gets %v, %v, %v", again.ID, repeated, err)
	}
}

func stack(password string) *agboxv1.CreateSpec {
	return &agboxv1.CreateSpec{Image: "img", Services: []*agboxv1.ServiceSpec{{Name: "db", Image: "img", Envs: map[string]string{"DB_PASSWORD": password}}}}
}

// unchanged is a daemon that makes the same ahead as the one before.
func unchanged(spec *agboxv1.CreateSpec) (*agboxv1.CreateSpec, string) { return spec, "" }

func TestAPoolIsKeptWithItsSecrets(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	made, err := l.SetPool(t.Context(), "stack", 2, stack("one"))
	if err != nil {
		t.Fatal(err)
	}
	if same, err := l.SetPool(t.Context(), "stack", 3, stack("one")); err != nil || same.ID != made.ID || same.Size != 3 {
		t.Errorf("with another size it is %+v, %v", same, err)
	}
	if _, err = l.CreateAhead(t.Context(), "member", made.ID, stack("one")); err != nil {
		t.Fatal(err)
	}
	emit(t, l, "member", agboxv1.EventType_SANDBOX_READY)
	_, err = l.Take(t.Context(), "member", stack("one"), RequestKey{})
	if err := errors.Join(err, l.Missed(t.Context(), made.ID), l.Missed(t.Context(), "nosuch")); err != nil {
		t.Fatal(err)
	}
	stop()
	l, _ = open(t, dir)
	all := l.Pools()
	if len(all) != 1 || all[0].ID != made.ID || all[0].Size != 3 || all[0].Hits != 1 || all[0].Misses != 1 || all[0].Spec.GetServices()[0].GetEnvs()["DB_PASSWORD"] != secrets.Placeholder {
		t.Fatalf("the pools are %+v", all)
	}
	for password, want := range map[string]bool{"one": true, "two": false} {
		if fit, near, err := l.PoolsFor(t.Context(), stack(password)); err != nil || (len(fit) == 1) != want || len(near) > 0 {
			t.Errorf("with the password %s there fit %v, %v", password, fit, err)
		}
	}
	if whole, err := l.PoolSpec(t.Context(), all[0]); err != nil || !proto.Equal(whole, stack("one")) {
		t.Errorf("its spec is %v, %v", whole, err)
	}
	l.RenewPools(t.Context(), "another daemon", 0, unchanged)
	renewed := l.Pools()[0]
	if whole, err := l.PoolSpec(t.Context(), renewed); err != nil || renewed.ID == made.ID || renewed.Hits != 1 || !renewed.CreatedAt.Equal(made.CreatedAt) || !proto.Equal(whole, stack("one")) {
		t.Errorf("of another daemon it is %+v, %v", renewed, err)
	}
	if l.RenewPools(t.Context(), "another daemon", 0, unchanged); l.Pools()[0].ID != renewed.ID {
		t.Error("it is made anew by the same daemon")
	}
	other, err := l.SetPool(t.Context(), "stack", 1, stack("two"))
	if err != nil || other.ID == made.ID {
		t.Errorf("with another spec it is %+v, %v", other, err)
	}
	if id, err := l.RemovePool(t.Context(), "stack"); err != nil || id != other.ID || len(l.Pools()) != 0 {
		t.Errorf("it is not removed: %v", err)
	}
	for _, id := range []string{made.ID, renewed.ID, other.ID} {
		if _, err := l.store.Keys().Get(id); !errors.Is(err, secrets.ErrNoKey) {
			t.Errorf("a key is left: %v", err)
		}
	}
	_, err = l.RemovePool(t.Context(), "stack")
	wantReason(t, err, agboxv1.ErrorReason_POOL_NOT_FOUND)
	if _, err := l.SetPool(t.Context(), "stack", 1, stack("two")); err != nil {
		t.Fatal(err)
	}
	refuses := func(*agboxv1.CreateSpec) (*agboxv1.CreateSpec, string) { return nil, "it has a mount" }
	if l.RenewPools(t.Context(), "a third daemon", 0, refuses); len(l.Pools()) != 0 {
		t.Errorf("of what this daemon does not make ahead there is a pool: %v", l.Pools())
	}
}

// TestPoolsThatManyChangeKeepTheirSecrets: who replaces a pool erases the key of the one that he has seen.
func TestPoolsThatManyChangeKeepTheirSecrets(t *testing.T) {
	l, _ := open(t, t.TempDir())
	passwords := []string{"one", "two", "three"}
	var seen sync.Map
	var all errgroup.Group
	for i := range 8 {
		all.Go(func() error {
			for range 10 {
				p, err := l.SetPool(t.Context(), "stack", i, stack(passwords[i%3]))
				if err != nil {
					return err
				}
				seen.Store(p.ID, true)
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	left := l.Pools()
	if len(left) != 1 {
		t.Fatalf("the pools are %v", left)
	}
	whole, err := l.PoolSpec(t.Context(), left[0])
	if err != nil || !slices.Contains(passwords, whole.GetServices()[0].GetEnvs()["DB_PASSWORD"]) {
		t.Errorf("its spec is %v, %v", whole, err)
	}
	for id := range seen.Range {
		if _, err := l.store.Keys().Get(id.(string)); id != left[0].ID && !errors.Is(err, secrets.ErrNoKey) {
			t.Errorf("a key is left: %v", err)
		}
	}
}

func TestOneOfManyTakesWhatWasMadeAhead(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	p := stocked(t, l, "a", "b")
	if _, err := l.Take(t.Context(), "a", stack("one"), RequestKey{}); !errors.Is(err, ErrTaken) {
		t.Errorf("it is taken before it is ready: %v", err)
	}
	emit(t, l, "a", agboxv1.EventType_SANDBOX_READY)
	wish := stack("one")
	wish.Name, wish.Envs = "demo", map[string]string{"API_KEY": "x"}
	sb, err := l.Take(t.Context(), "a", wish, RequestKey{Key: "key"})
	if err != nil || sb.Name != "demo" || sb.Pool != "" || sb.Accepted != sb.LastSequence {
		t.Fatalf("it is %+v, %v", sb.Record, err)
	}
	named(t, l, "demo", "a")
	_, err = l.Take(t.Context(), "b", wish, RequestKey{Key: "key"})
	wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)
	emit(t, l, "b", agboxv1.EventType_SANDBOX_READY)
	_, err = l.Take(t.Context(), "b", wish, RequestKey{})
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	stop()
	l, _ = open(t, dir)
	if left := l.Ahead(p.ID); !slices.EqualFunc(left, []string{"b"}, func(sb Sandbox, id string) bool { return sb.ID == id }) {
		t.Errorf("in the pool there are %v", left)
	}
	sb, _ = l.Sandbox("a")
	if sb, err = l.Reveal(t.Context(), sb); err != nil || !proto.Equal(sb.Spec, wish) {
		t.Errorf("its spec is %v, %v", sb.Spec, err)
	}
}

// TestWhatLacksAServiceIsNotTaken: the service may have failed after the look whether it can be handed out.
func TestWhatLacksAServiceIsNotTaken(t *testing.T) {
	l, _ := open(t, t.TempDir())
	spec := stack("one")
	spec.Services[0].Required = new(true)
	p, err := l.SetPool(t.Context(), "stack", 1, spec)
	if err == nil {
		_, err = l.CreateAhead(t.Context(), "member", p.ID, spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	db := func(typ agboxv1.EventType) {
		t.Helper()
		sb, _ := l.Sandbox("member")
		if _, err := l.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: typ, Details: &agboxv1.SandboxEvent_Service{
			Service: &agboxv1.ServiceEventDetails{Name: "db", Start: 1, ErrorCode: agboxv1.ErrorReason_SERVICE_UNHEALTHY.String()},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	db(agboxv1.EventType_SANDBOX_SERVICE_STARTED)
	db(agboxv1.EventType_SANDBOX_SERVICE_READY)
	emit(t, l, "member", agboxv1.EventType_SANDBOX_READY)
	db(agboxv1.EventType_SANDBOX_SERVICE_FAILED)
	if _, err := l.Take(t.Context(), "member", spec, RequestKey{}); !errors.Is(err, ErrTaken) {
		t.Errorf("it is taken: %v", err)
	}
	if p, _ = l.Pool(p.ID); p.Hits != 0 {
		t.Errorf("it counts %d hits", p.Hits)
	}
}

// TestAPoolOfSomethingElseIsNotIdle: nobody can have asked for it yet.
func TestAPoolOfSomethingElseIsNotIdle(t *testing.T) {
	l, _ := open(t, t.TempDir())
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l.now = func() time.Time { return now }
	p, err := l.SetPool(t.Context(), "stack", 1, stack("one"))
	if err == nil {
		err = l.Missed(t.Context(), p.ID)
	}
	now = now.Add(24 * time.Hour)
	other, failed := l.SetPool(t.Context(), "stack", 1, stack("two"))
	if err = errors.Join(err, failed); err != nil || !other.UsedAt.Equal(now) {
		t.Errorf("it is %+v, %v", other, err)
	}
	if all := l.Pools(); !all[0].UsedAt.Equal(now) {
		t.Errorf("it is listed as %+v", all)
	}
}

// TestAKeyIsNoSecondName: the key of the request of one sandbox may be the name of it, or of another one.
func TestAKeyIsNoSecondName(t *testing.T) {
	l := fresh(t)
	for _, sb := range []struct{ id, name, key string }{{"one", "web", "web"}, {"two", "db", "other"}, {"three", "mail", "db"}} {
		spec := &agboxv1.CreateSpec{Image: "img", Name: sb.name}
		if _, err := l.CreateKeyed(t.Context(), sb.id, spec, RequestKey{Key: sb.key, Digest: []byte{1}}); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{"web": "one", "db": "two", "other": "two"} {
		if all, err := l.Resolve(t.Context(), agboxv1.RefKind_REF_KIND_SANDBOX, text); err != nil || len(all) != 1 || all[0].GetId() != want {
			t.Errorf("%s is %v, %v; want %s", text, all, err, want)
		}
	}
}

// TestNoNameLeadsToACommandOfWhatNobodyHas: only its id does, which the trouble of a pool names.
func TestNoNameLeadsToACommandOfWhatNobodyHas(t *testing.T) {
	l, _ := open(t, t.TempDir())
	stocked(t, l, "member")
	emit(t, l, "member", agboxv1.EventType_SANDBOX_READY)
	req := request("prepare-1-member")
	req.SandboxId, req.Name = "member", "prepare-1"
	if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"prepare-1": 0, "prepare-": 0, "prepare-1-member": 1} {
		if all, err := l.Resolve(t.Context(), agboxv1.RefKind_REF_KIND_EXEC, text); len(all) != want || (err == nil) != (want == 1) {
			t.Errorf("%s is %v, %v", text, all, err)
		}
	}
}

// What a pool prepares sees the environment, so another one is near it, whether its secrets differ or all else.
func TestAnotherEnvironmentIsNearAPoolThatPrepares(t *testing.T) {
	l, _ := open(t, t.TempDir())
	prepared := func(envs map[string]string) *agboxv1.CreateSpec {
		return &agboxv1.CreateSpec{Image: "x", Prepare: []string{"true"}, Envs: envs}
	}
	if _, err := l.SetPool(t.Context(), "stock", 1, prepared(map[string]string{"API_KEY": "one"})); err != nil {
		t.Fatal(err)
	}
	other := prepared(nil)
	other.Image = "y"
	plain := prepared(map[string]string{"API_KEY": "two"})
	plain.Prepare = nil
	for _, c := range []struct {
		spec *agboxv1.CreateSpec
		want string
	}{
		{prepared(map[string]string{"API_KEY": "one"}), "1 0"},
		{prepared(map[string]string{"API_KEY": "two"}), "0 1"},
		{prepared(map[string]string{"A": "1"}), "0 1"},
		{prepared(nil), "0 1"}, {other, "0 0"}, {plain, "0 0"},
	} {
		fit, near, err := l.PoolsFor(t.Context(), c.spec)
		if got := fmt.Sprint(len(fit), len(near)); err != nil || got != c.want {
			t.Errorf("for %v there are %s, %v", c.spec, got, err)
		}
	}
}
