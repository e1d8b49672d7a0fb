package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	tidy, err := harness.Setup(filepath.Join("..", "..", "bin"), harness.ImageBusybox, harness.ImageLanguages)
	if err != nil {
		fmt.Fprintln(os.Stderr, "agents:", err)
		return 1
	}
	code := 1
	if err := robot.Build(filepath.Join("..", "internal", "robot")); err != nil {
		fmt.Fprintln(os.Stderr, "agents:", err)
	} else {
		code = m.Run()
	}
	tidy()
	if err := harness.GoroutinesLeft(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "agents: the tests left goroutines behind:", err)
		return 1
	}
	return code
}
