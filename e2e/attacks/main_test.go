package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

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
	if os.Geteuid() != 0 {
		// Not a failure: a user without root must be able to run the other tests.
		fmt.Fprintln(os.Stderr, "attacks: NOT RUN. These tests act as several users: run them as root, with 'sudo make test-attacks'.")
		return 0
	}
	tidy, err := harness.Setup(filepath.Join("..", "..", "bin"), harness.ImageBusybox, harness.ImageDebian)
	if err != nil {
		fmt.Fprintln(os.Stderr, "attacks:", err)
		return 1
	}
	code := m.Run()
	tidy()
	if err := table.Verdict(os.Stdout, attackList, here); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "attacks:", err)
		code = 1
	}
	if err := harness.GoroutinesLeft(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "attacks: the tests left goroutines behind:", err)
		return 1
	}
	return code
}
