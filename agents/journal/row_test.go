package journal

import (
	"errors"
	"strings"
	"testing"
)

func TestTheNewestFiveCheckpointsAreKnown(t *testing.T) {
	s := Start()
	for seq := uint64(4); seq <= 10; seq++ {
		next, err := s.Next(Row{Op: Checkpoint, Mark: &Mark{Seq: seq, ID: "x", Kind: StepCheckpoint, Bytes: 5}})
		if err != nil {
			t.Fatal(err)
		}
		s = next
		if got := s.Checkpoints.Newest().Seq; got != seq {
			t.Errorf("the newest is %d, not %d", got, seq)
		}
	}
	for i, m := range s.Checkpoints {
		if m.Seq != uint64(6+i) {
			t.Errorf("at %d is checkpoint %d", i, m.Seq)
		}
	}
}

func TestMarksThatMayNotFollow(t *testing.T) {
	s, err := Start().Next(Row{Op: Checkpoint, Mark: &Mark{Seq: 4, ID: "x", Kind: TurnCheckpoint}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Mark{
		nil, {Seq: 5, Kind: TurnCheckpoint}, {Seq: 5, ID: "\x1b", Kind: TurnCheckpoint}, {Seq: 5, ID: strings.Repeat("x", 65), Kind: TurnCheckpoint},
		{Seq: 5, ID: "x"}, {Seq: 5, ID: "x", Kind: "rest"}, {ID: "x", Kind: TurnCheckpoint}, {Seq: 4, ID: "x", Kind: TurnCheckpoint},
		{Seq: 6, ID: "x", Kind: TurnCheckpoint}, {Seq: 5, ID: "x", Kind: TurnCheckpoint, Bytes: maxCount + 1},
		{Seq: 5, ID: "x", Kind: TurnCheckpoint, Turn: maxCount + 1}, {Seq: 5, ID: "x", Kind: TurnCheckpoint, ResumePoint: strings.Repeat("x", MaxText+1)},
	} {
		next, err := s.Next(Row{Op: Checkpoint, Mark: m})
		if refusal := Refusal(""); !errors.As(err, &refusal) || next != s {
			t.Errorf("%+v: %v", m, err)
		}
	}
}
