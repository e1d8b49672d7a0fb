package store

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"
)

// Examine checks whether Open would succeed. It creates and changes nothing. The
// error is nil for a database that Open accepts, errdefs.ErrNotFound if there
// has never been one, and otherwise the error of Open. o.AdoptLost is ignored.
func Examine(ctx context.Context, o Options) error {
	o = o.withDefaults()
	err := examine(ctx, o)
	if err == nil || errdefs.IsNotFound(err) {
		return err
	}
	return openFault(o, err)
}

func examine(ctx context.Context, o Options) error {
	folder := filepath.Dir(o.Path)
	if has, err := exists(folder); err != nil || !has {
		return orNotFound(o, err)
	}
	unlock, err := lockDir(ctx, folder, o.LockTimeout)
	if err != nil {
		return err
	}
	defer unlock()
	has, err := exists(o.Path)
	if err != nil {
		return err
	}
	if has {
		_, err := inspect(ctx, o, false)
		return err
	}
	installID, hadOne, err := readSentinel(o.Sentinel)
	if err != nil || !hadOne {
		return orNotFound(o, err)
	}
	return lost(o.Path, o.Sentinel, installID)
}

func orNotFound(o Options, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("there has never been a database %s: %w", o.Path, errdefs.ErrNotFound)
}

// InstallIDOf reads the install id from the sentinel file. found is false if
// the file does not exist.
func InstallIDOf(sentinel string) (id string, found bool, err error) { return readSentinel(sentinel) }
