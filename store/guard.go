package store

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// guard runs fn and returns ErrDamaged for the panics that a damaged mapped file
// causes: a memory fault beyond a truncation, or a failed assertion of bbolt.
// Other panics come from fn's own code and are raised again.
func guard(fn func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			if err = damageOf(r); err == nil {
				panic(r)
			}
		}
	}()
	return fn()
}

// guardBolt is guard for code that is entirely bbolt's: there every panic means damage.
func guardBolt(fn func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: its pages contradict each other: %v", ErrDamaged, r)
		}
	}()
	return fn()
}

// damageOf returns ErrDamaged for a panic caused by a damaged file, and nil for
// any other panic.
func damageOf(recovered any) error {
	switch r := recovered.(type) {
	case interface{ Addr() uintptr }: // a memory fault, see debug.SetPanicOnFault
		return fmt.Errorf("%w: %v", ErrDamaged, r)
	case string:
		if strings.HasPrefix(r, "assertion failed: ") || strings.HasPrefix(r, "invalid page type: ") {
			return fmt.Errorf("%w: %s", ErrDamaged, r)
		}
	}
	return nil
}

func isDamage(err error) bool { return errors.Is(err, ErrDamaged) }
