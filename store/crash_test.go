package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const writersInChild = 16

// writeUntilKilled appends events from many goroutines and prints each event
// after its acknowledgement. It runs until SIGKILL.
func writeUntilKilled(args []string) int {
	ctx := context.Background()
	s, err := Open(ctx, testOptions(args[0]))
	if err != nil {
		fmt.Println("cannot open:", err)
		return 1
	}
	var all sync.WaitGroup
	for w := range writersInChild {
		all.Go(func() {
			for {
				ev := execEvent(numbered("s", w), "x", agboxv1.EventType_EXEC_STARTED)
				err := s.Update(ctx, func(tx *Tx) error {
					return tx.AppendEvent(ev)
				})
				if err != nil {
					fmt.Println("cannot write:", err)
					os.Exit(1)
				}
				fmt.Println(w, ev.GetSequence()) // one write call, so a line is never cut
			}
		})
	}
	all.Wait()
	return 0
}

// runAndKill returns the highest acknowledged sequence of each writer.
func runAndKill(t *testing.T, dir string, afterLines int) [writersInChild]uint64 {
	t.Helper()
	cmd := child("write", dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var acknowledged [writersInChild]uint64
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		var w int
		var sequence uint64
		if _, err := fmt.Sscan(lines.Text(), &w, &sequence); err != nil {
			t.Fatalf("the child says %q", lines.Text())
		}
		acknowledged[w] = max(acknowledged[w], sequence)
		if n == afterLines {
			_ = cmd.Process.Kill() // the loop still reads what it printed before
		}
	}
	_ = cmd.Wait()
	return acknowledged
}

func TestEveryAcknowledgedWriteOutlivesSIGKILL(t *testing.T) {
	o := testOptions(t.TempDir())
	for round := range 12 {
		acknowledged := runAndKill(t, filepath.Dir(o.Path), 50+37*round)
		s, err := Open(t.Context(), o)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		mustView(t, s, func(tx *Tx) {
			total := 0
			for w, want := range acknowledged {
				id := numbered("s", w)
				page := tx.Events(id, 0, 1<<30, 0)
				total += len(page.Records)
				for i, ev := range page.Records {
					if ev.GetSequence() != uint64(i+1) {
						t.Fatalf("round %d: %s has a gap before %d", round, id, ev.GetSequence())
					}
				}
				if tx.LastSequence(id) < want {
					t.Fatalf("round %d: %s lost %d to %d", round, id, tx.LastSequence(id)+1, want)
				}
				if len(page.Records) == 0 {
					continue // this writer committed nothing before the kill
				}
				if last, err := tx.ExecLastEvent(id, "x"); err != nil || last.GetSequence() != tx.LastSequence(id) {
					t.Fatalf("round %d: last event %v, %v", round, last, err)
				}
			}
			ordered := tx.OrderedEvents(0, 1<<30)
			if len(ordered.Records) != total || len(ordered.Bad) != 0 || ordered.Next != uint64(total) {
				t.Fatalf("round %d: %d events in order, %d in all, last position %d", round, len(ordered.Records), total, ordered.Next)
			}
		})
		closeStore(t, s)
	}
}
