package lease

import (
	"slices"
	"testing"
)

func holding(list ...Claim) []Hold { return Merge(nil, list, 1) }

func TestOnlyYoungerAgentsAreWaitedFor(t *testing.T) {
	shared, whole := Claim{"db", Shared}, Claim{"db", Exclusive}
	for _, row := range []struct {
		name     string
		others   []Party
		manifest Claim
		want     Verdict
		blockers []string
	}{
		{"nobody holds it", nil, whole, Granted, nil},
		{"shared is shared", []Party{{ID: "a", Age: 1, Holds: holding(shared)}}, shared, Granted, nil},
		{"another resource", []Party{{ID: "a", Age: 1, Holds: holding(Claim{"dc", Exclusive})}}, whole, Granted, nil},
		{"another scope", []Party{{ID: "a", Age: 1, Scope: "other", Holds: holding(whole)}}, whole, Granted, nil},
		{"a younger holder", []Party{{ID: "z", Age: 9, Holds: holding(shared)}}, whole, Wait, []string{"z"}},
		{"an older holder", []Party{{ID: "a", Age: 1, Holds: holding(shared)}}, whole, Die, []string{"a"}},
		{"one of each", []Party{{ID: "z", Age: 9, Holds: holding(shared)}, {ID: "a", Age: 1, Holds: holding(shared)}}, whole, Die, []string{"a", "z"}},
		{"an older agent that waits", []Party{{ID: "a", Age: 1, Wants: []Claim{whole}, Queued: 7}}, shared, Die, []string{"a"}},
		{"a younger agent that waits", []Party{{ID: "z", Age: 9, Wants: []Claim{whole}, Queued: 7}}, shared, Wait, []string{"z"}},
		{"an older agent that is parked", []Party{{ID: "a", Age: 1, Wants: []Claim{whole}}}, shared, Granted, nil},
		{"its own lease", []Party{{ID: "me", Age: 5, Holds: holding(whole)}}, shared, Granted, nil},
	} {
		verdict, blockers := Decide(row.others, Party{ID: "me", Age: 5}, []Claim{row.manifest})
		if verdict != row.want || !slices.Equal(blockers, row.blockers) {
			t.Errorf("%s: verdict %v against %v; want %v against %v", row.name, verdict, blockers, row.want, row.blockers)
		}
	}
}

func TestWhatIsFreeIsGrantedInTheOrderOfTheQueue(t *testing.T) {
	whole := []Claim{{"db", Exclusive}}
	table := []Party{
		{ID: "late", Age: 1, Wants: whole, Queued: 30},
		{ID: "early", Age: 2, Wants: whole, Queued: 10},
		{ID: "holder", Age: 3, Holds: holding(whole...)},
		{ID: "parked", Age: 4, Wants: whole},
	}
	if id, ok := next(table); ok {
		t.Errorf("%s is granted what another holds", id)
	}
	table[2].Holds = nil
	if id, ok := next(table); !ok || id != "early" {
		t.Errorf("%q is granted; want early", id)
	}
	if parked := theParked(table); !slices.Equal(parked, []string{"parked"}) {
		t.Errorf("%v are parked; want parked", parked)
	}
	if got := Contested(whole, []Claim{{"a", Shared}, {"db", Shared}}); got != "db" {
		t.Errorf("%q is contested; want db", got)
	}
}

func TestAHoldKeepsItsFencingNumberUnlessItGetsStronger(t *testing.T) {
	before := Merge(nil, []Claim{{"a", Shared}, {"c", Exclusive}}, 5)
	after := Merge(before, []Claim{{"a", Exclusive}, {"b", Shared}, {"c", Shared}}, 9)
	want := []Hold{{Claim{"a", Exclusive}, 9}, {Claim{"b", Shared}, 9}, {Claim{"c", Exclusive}, 5}}
	if !slices.Equal(after, want) {
		t.Errorf("merged: %v; want %v", after, want)
	}
	if before[0].Fence != 5 || before[0].Mode != Shared {
		t.Error("the merge has changed its argument")
	}
	if !Covers(after, []Claim{{"a", Shared}, {"b", Shared}}) || Covers(after, []Claim{{"b", Exclusive}}) || Covers(after, []Claim{{"d", Shared}}) {
		t.Error("what is covered is wrong")
	}
}

func TestAManifestHasEachResourceOnceWithItsGreatestMode(t *testing.T) {
	got := Normal([]Claim{{"b", Shared}, {"a", Shared}, {"b", Exclusive}, {"a", Shared}})
	if want := []Claim{{"a", Shared}, {"b", Exclusive}}; !slices.Equal(got, want) {
		t.Errorf("normal: %v; want %v", got, want)
	}
}
