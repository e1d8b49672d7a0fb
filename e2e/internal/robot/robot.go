// Package robot is an agent for tests: a static program that works in steps and dies as it
// is told, and what the tests read of it afterwards. Each effect is appended with its
// invocation id to a file on the host, so a lost or repeated one is seen. A diary beside it
// has what the robot sent, and what was acknowledged.
package robot

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// binary is the path of the program once it is built.
func binary() string { return filepath.Join(harness.Binaries, "robot") }

// Build builds the program beside the binaries under test. folder is that of this package,
// relative to the working directory.
func Build(folder string) error {
	build := exec.Command("go", "build", "-trimpath", "-o", binary(), "./program")
	build.Dir = folder
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("the robot cannot be built: %w\n%s", err, out)
	}
	return nil
}

// inside is where sandboxes have the folder.
const inside = "/robot"

// Folder is a folder on the host with the program, the effects and the diaries. It is
// mounted into sandboxes.
type Folder string

// Place puts the program into an existing folder.
func Place(folder string) (Folder, error) {
	program, err := os.ReadFile(binary())
	if err != nil {
		return "", err
	}
	// The user of the sandbox may be any.
	err = errors.Join(os.Chmod(folder, 0o777), harness.WriteProgram(filepath.Join(folder, "robot"), program))
	return Folder(folder), err
}

// Mount returns the flags of "agbox create" and "agbox agent spawn" that mount the folder.
func (f Folder) Mount() []string { return []string{"--mount", string(f) + ":" + inside + ":rw"} }

// Go opens the gate of all robots, or that of one agent.
func (f Folder) Go(agentID ...string) error {
	gate := "go"
	if len(agentID) > 0 {
		gate = agentID[0] + ".go"
	}
	return os.WriteFile(filepath.Join(string(f), gate), nil, 0o600)
}

// Hurry ends the pauses after steps of all robots: what is left of their work has none.
func (f Folder) Hurry() error { return os.WriteFile(filepath.Join(string(f), "hurry"), nil, 0o600) }

// Plan says what a robot does.
type Plan struct {
	// Steps is how many steps the work has.
	Steps int
	// Seed decides what each step uses and, with Deaths, how and when it dies.
	Seed uint64
	// Deaths is how many incarnations die at a random report.
	Deaths int
	// Die lists deaths, as "1@3:kill,2@5+:exit7": in incarnation 1 before report 3 is sent,
	// in incarnation 2 after report 5 was sent and before its answer was read. Kinds are
	// kill (SIGKILL), exitN, error (exit code 1 with a sentence that is always the same),
	// fail (the same with one that differs), oom (uses memory until it is killed), hang
	// (does nothing more), busy (the same, but it uses its processor) and stop (SIGSTOP).
	Die string
	// Pace is a pause after each step, until Folder.Hurry.
	Pace time.Duration
	// WaitAt is a step before which it waits for Folder.Go. 0 means none.
	WaitAt int
	// Beat is the time between beats. 0 means none.
	Beat time.Duration
	// IgnoreTerm has it go on after SIGTERM.
	IgnoreTerm bool
	// Checkpoint is the size of the state in the checkpoint after each step. 0 means that it
	// saves none. Without a checkpoint it finds out from its effects where to go on.
	Checkpoint int
	// Fanout is how many children it and its descendants have, for Depth generations. Each
	// tells its parent of each step, and ends when all its children have.
	Fanout, Depth int
	// Stream, if it is not empty, is where all of them tell of each step too. Those that have
	// children read it.
	Stream string
	// Holds has it hold its children. It lets go of one now and then.
	Holds bool
	// Resources is of how many resources it claims two in every second step.
	Resources int
}

// Command returns the command of the robot in a sandbox.
func (p Plan) Command() []string {
	command := []string{inside + "/robot", "-steps", strconv.Itoa(p.Steps), "-seed", strconv.FormatUint(p.Seed, 10)}
	if p.Deaths > 0 {
		command = append(command, "-deaths", strconv.Itoa(p.Deaths))
	}
	if p.Die != "" {
		command = append(command, "-die", p.Die)
	}
	if p.Pace > 0 {
		command = append(command, "-pace", p.Pace.String())
	}
	if p.WaitAt > 0 {
		command = append(command, "-wait-at", strconv.Itoa(p.WaitAt))
	}
	if p.Beat > 0 {
		command = append(command, "-beat", p.Beat.String())
	}
	if p.Checkpoint > 0 {
		command = append(command, "-checkpoint", strconv.Itoa(p.Checkpoint))
	}
	if p.Fanout > 0 {
		command = append(command, "-fanout", strconv.Itoa(p.Fanout), "-depth", strconv.Itoa(p.Depth))
	}
	if p.Stream != "" {
		command = append(command, "-stream", p.Stream)
	}
	if p.Holds {
		command = append(command, "-holds")
	}
	if p.Resources > 0 {
		command = append(command, "-resources", strconv.Itoa(p.Resources))
	}
	if p.IgnoreTerm {
		command = append(command, "-ignore-term")
	}
	return command
}
