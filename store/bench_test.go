package store

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// BenchmarkUpdate measures the writes of one CreateExec: a reservation, a config and an event.
func BenchmarkUpdate(b *testing.B) {
	accept := func(i int) func(tx *Tx) error {
		id := numbered("x", i)
		return func(tx *Tx) error {
			if err := tx.ReserveExec(id, testTime); err != nil {
				return err
			}
			if err := tx.PutExecConfig("box", id, &agboxv1.CreateExecRequest{Command: []string{"true"}}); err != nil {
				return err
			}
			return appendEvents(execEvent("box", id, agboxv1.EventType_EXEC_STARTED))(tx)
		}
	}
	b.Run("alone", func(b *testing.B) {
		s := newStore(b)
		i := 0
		for b.Loop() {
			i++
			mustUpdate(b, s, accept(i))
		}
	})
	b.Run("64 callers", func(b *testing.B) {
		s := newStore(b)
		numbers := make(chan int)
		go func() {
			for i := range b.N {
				numbers <- i
			}
			close(numbers)
		}()
		done := make(chan error)
		for range 64 {
			go func() {
				var failed error
				for i := range numbers {
					if err := s.Update(b.Context(), accept(i)); err != nil {
						failed = err
					}
				}
				done <- failed
			}()
		}
		for range 64 {
			if err := <-done; err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkOpenAfterUncleanStop opens a database of about 50 MB with and without the check.
func BenchmarkOpenAfterUncleanStop(b *testing.B) {
	o := testOptions(b.TempDir())
	s := mustOpen(b, o)
	reason := strings.Repeat("because ", 25)
	for box := range 200 {
		mustUpdate(b, s, func(tx *Tx) error {
			for range 700 {
				ev := execEvent(numbered("s", box), "x", agboxv1.EventType_EXEC_FAILED)
				ev.GetExec().ErrorMessage = reason
				if err := tx.AppendEvent(ev); err != nil {
					return err
				}
			}
			return nil
		})
	}
	closeStore(b, s)
	for name, clean := range map[string]bool{"checked": false, "clean": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if !clean {
					_ = unmarkClean(o.Path)
				}
				s, err := Open(b.Context(), o)
				if err != nil {
					b.Fatal(err)
				}
				closeStore(b, s)
			}
			b.ReportMetric(float64(len(readFile(b, o.Path)))/1e6, "MB")
		})
	}
}
