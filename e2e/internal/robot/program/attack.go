package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// attackers is how many connections an attack uses at the same time.
const attackers = 8

// attack sends the same request again and again for some time, as fast as it can, on several
// connections and without waiting for answers. It prints how many requests were sent and
// answered, and how many of those were refused with which code.
func attack(op string, length time.Duration) error {
	line, err := json.Marshal(report{Op: op, ID: 1, Token: os.Getenv("AGBOX_TOKEN"), Tool: "some-tool"})
	if err != nil {
		return err
	}
	line = append(line, '\n')
	var sent atomic.Int64
	var work sync.WaitGroup
	var mu sync.Mutex // guards counts
	counts := make(map[string]int64)
	failed := make(chan error, 2*attackers)
	attempt := func(what func() error) {
		work.Go(func() {
			for {
				if err := what(); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	until := time.Now().Add(length)
	for range attackers {
		s := newSocket()
		if _, err := must(s.ask(report{Op: "hello"})); err != nil {
			return err
		}
		if err := s.conn.SetDeadline(until); err != nil {
			return err
		}
		attempt(func() error {
			_, err := s.conn.Write(line)
			if err == nil {
				sent.Add(1)
			}
			return err
		})
		attempt(func() error {
			raw, err := s.in.ReadBytes('\n')
			var got answer
			if err == nil {
				err = json.Unmarshal(raw, &got)
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if counts["answered"]++; !got.OK {
				counts[got.Error.Code]++
			}
			return nil
		})
	}
	work.Wait()
	for range 2 * attackers {
		if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("the attack has failed: %w", err)
		}
	}
	counts["sent"] = sent.Load()
	return json.NewEncoder(os.Stdout).Encode(counts)
}
