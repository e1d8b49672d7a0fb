package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == tracerCommand {
		os.Exit(tracerMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == busyCommand {
		busyMain(os.Args[2])
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		// Not a failure: a user without root must be able to run the other tests.
		fmt.Fprintln(os.Stderr, "faults: NOT RUN. These tests trace processes and mount file systems: run them as root, with 'sudo make test-faults'.")
		return 0
	}
	tidy, err := harness.Setup(filepath.Join("..", "..", "bin"), harness.ImageBusybox, harness.ImageDebian)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		return 1
	}
	code := 1
	if err := errors.Join(buildOracle(), robot.Build(filepath.Join("..", "internal", "robot"))); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
	} else {
		code = m.Run()
	}
	tidy()
	if err := table.Verdict(os.Stdout, faultList, here); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "faults:", err)
		code = 1
	}
	if err := harness.GoroutinesLeft(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "faults: the tests left goroutines behind:", err)
		return 1
	}
	return code
}

// oracleBinary is the path of the static program that commands under test run.
func oracleBinary() string { return filepath.Join(harness.Binaries, "oracle") }

func buildOracle() error {
	build := exec.Command("go", "build", "-trimpath", "-o", oracleBinary(), "./oracle")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("the oracle cannot be built: %w\n%s", err, out), os.RemoveAll(oracleBinary()))
	}
	return nil
}
