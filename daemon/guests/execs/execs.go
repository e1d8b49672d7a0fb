// Package execs runs commands in sandboxes: it passes accepted execs to the supervisors
// and records how they end.
package execs

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
)

// Runner runs commands over the links to supervisors.
type Runner struct {
	links  *links.Links
	ledger *ledger.Ledger
	paths  paths.Install
	now    func() time.Time
	log    *slog.Logger

	// looked counts the journals whose sizes were read. Tests bound it.
	looked atomic.Uint64
}

// New makes a Runner. It receives the reports of all links. It has no goroutines of its
// own: Links.Close waits for its work.
func New(l *links.Links, book *ledger.Ledger, install paths.Install, now func() time.Time, log *slog.Logger) *Runner {
	r := &Runner{links: l, ledger: book, paths: install, now: now, log: log}
	l.SendReports(r)
	return r
}
