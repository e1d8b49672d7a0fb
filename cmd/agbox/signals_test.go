package main

import (
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// hangUp sends the signal of a closed terminal.
func hangUp(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Error(err)
	}
}

func TestASandboxDoesNotOutliveTheTerminalItWasMadeFor(t *testing.T) {
	// Also if the tests run under nohup: a caught signal is not ignored.
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	for _, line := range []string{"create --image slow", "run --rm slow wait", "run slow wait", "run --rm good wait"} {
		t.Run(line, func(t *testing.T) {
			d, socket := serveScripted(t)
			c := newCLI(t, socket)
			c.app.signals, c.app.restore = processSignals()
			wrote := sync.OnceFunc(func() { hangUp(t) })
			if strings.Contains(line, "slow") {
				c.errs.wrote = wrote
			} else {
				c.out.wrote = wrote
			}
			if code := c.exec(t.Context(), strings.Fields(line)...); code != codeSignal+int(syscall.SIGHUP) {
				t.Errorf("code %d, stderr %q", code, c.errs.String())
			}
			if state := d.boxes[0].GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_DELETED {
				t.Errorf("it is %v", state)
			}
			if len(d.signals) > 0 {
				t.Errorf("the command got %v", d.signals)
			}
		})
	}
}

func TestACommandOutlivesTheTerminalIfItsSandboxDoes(t *testing.T) {
	d, socket := serveScripted(t)
	c := newCLI(t, socket)
	c.out.wrote = func() { c.signals <- syscall.SIGHUP }
	code := c.exec(t.Context(), "run", "good", "wait")
	if code != codeSignal+int(syscall.SIGHUP) || !strings.Contains(c.errs.String(), "agbox kill "+d.execs[0].GetExecId()) {
		t.Errorf("code %d, stderr %q", code, c.errs.String())
	}
	if state := d.execs[0].GetState(); state != agboxv1.ExecState_EXEC_STATE_RUNNING {
		t.Errorf("the command is %v", state)
	}
}

func TestASignalIsNotLostWhenTheSandboxIsReadyAtThatMoment(t *testing.T) {
	d, socket := serveScripted(t)
	c := newCLI(t, socket)
	c.width = func() int { return 80 }
	c.signals = make(chan os.Signal) // it is received before the command continues
	c.errs.wrote = func() {
		if strings.HasSuffix(c.errs.String(), "\r\x1b[K") { // the progress line was cleared
			c.signals <- syscall.SIGINT
		}
	}
	if code := c.exec(t.Context(), "run", "good", "exit", "5"); code != 130 {
		t.Errorf("code %d, stderr %q", code, c.errs.String())
	}
	if state := d.boxes[0].GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_DELETED || len(d.execs) > 0 {
		t.Errorf("it is %v, and %v ran in it", state, d.execs)
	}
}

func TestASignalBetweenTwoPartsOfACommandWaitsForTheSecond(t *testing.T) {
	subscribe, _ := processSignals()
	_, end := subscribe(syscall.SIGUSR1)
	defer end()
	_, endFirst := subscribe(syscall.SIGUSR1)
	endFirst()
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	second, endSecond := subscribe(syscall.SIGUSR1, syscall.SIGUSR2)
	defer endSecond()
	if got := <-second; got != syscall.SIGUSR1 {
		t.Errorf("got %v", got)
	}
}

func TestWhatNohupIgnoresStaysIgnored(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	subscribe, _ := processSignals()
	_, end := subscribe(syscall.SIGHUP, syscall.SIGUSR1)
	if !signal.Ignored(syscall.SIGHUP) {
		t.Error("it is asked for")
	}
	if end(); !signal.Ignored(syscall.SIGHUP) {
		t.Error("it is asked for no more, but not ignored")
	}
}
