package store

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// guard turns the ways in which a damaged file shows itself while it is mapped
// into ErrDamaged: a memory fault where the file was cut, a failed assertion of
// bbolt. Other panics come from fn's own code and go on.
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

// guardBolt is guard for code of bbolt alone, where every panic means damage.
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

// damageOf returns nil for a panic that has another cause.
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
