package logs

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/ids"
)

// namesPerExec bounds the names that are read for each exec of a list. An exec has 4
// files; the others may be anything that the container has put there.
const namesPerExec = 8

// errListed ends a list that is long enough.
var errListed = errors.New("the list is long enough")

// ExecIDs lists the execs that have a status file, in no order: at most limit ids, all
// valid. more tells that the directory was not read to its end. The files may be
// anything: ReadStatus checks them.
func (d *Dir) ExecIDs(ctx context.Context, limit int) (list []string, more bool, err error) {
	var top *os.File
	err = d.at(func(fd int) (err error) {
		top, err = filesystem.Open(fd, ".")
		return err
	})
	if err != nil {
		return nil, false, d.describe(".", err)
	}
	defer func() { _ = top.Close() }()
	names := 0
	err = filesystem.Names(ctx, top, func(name string) error {
		if names++; names > limit*namesPerExec {
			return errListed
		}
		id, ok := strings.CutSuffix(name, suffixStatus)
		switch {
		case !ok || !ids.Valid(id):
			return nil
		case len(list) == limit:
			return errListed
		}
		list = append(list, id)
		return nil
	})
	if errors.Is(err, errListed) {
		return list, true, nil
	}
	return list, false, err
}
