package attacks

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// others adds the rows of ATTACKS.md whose tests are in other packages. "make test" runs
// those packages anyway.
var others = flag.Bool("elsewhere", false, "also run the tests of other packages that ATTACKS.md names")

// everywhere runs all tests also in the other places. "make test" has to be quick.
var everywhere = flag.Bool("everywhere", false, "run all tests in the other places, and each attack in all its ways, and not only some")

// Set for a process of TestAttacksAreHeldElsewhere. Its user may not reach the repository.
var (
	placeName = flag.String("place", "", "run in this place, which another run of these tests has made")
	binaries  = flag.String("binaries", filepath.Join("..", "..", "bin"), "the folder of the binaries")
)

// runElsewhere runs beside the tests of this package, which wait most of the time.
func runElsewhere() {
	attacks, err := attackList()
	if err == nil {
		err = table.Elsewhere(context.Background(), repository, attacks, here, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "attacks:", err) // the table lacks the rows, or shows them as not ended
	}
}

func TestMain(m *testing.M) {
	if path := os.Getenv(neighbourVariable); path != "" {
		os.Exit(pretendToBeTheDaemon(path))
	}
	if os.Getenv(hogVariable) != "" {
		os.Exit(holdInstances())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	flag.Parse()
	if os.Geteuid() != 0 && *placeName == "" {
		// Not a failure: a user without root must be able to run the other tests.
		fmt.Fprintln(os.Stderr, "attacks: NOT RUN. These tests act as several users: run them as root, with 'sudo make test-attacks'.")
		return 0
	}
	tidy, err := harness.Setup(*binaries, harness.ImageBusybox, harness.ImageDebian)
	if err != nil {
		fmt.Fprintln(os.Stderr, "attacks:", err)
		return 1
	}
	var running sync.WaitGroup
	if *others {
		running.Go(runElsewhere)
	}
	code := m.Run()
	running.Wait()
	tidy()
	if err := table.Verdict(os.Stdout, attackList, here); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "attacks:", err)
		code = 1
	}
	good, all := table.Count()
	fmt.Printf("%d of %d attacks held\n", good, all) // see held
	if err := harness.GoroutinesLeft(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "attacks: the tests left goroutines behind:", err)
		return 1
	}
	return code
}
