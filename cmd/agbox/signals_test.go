package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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

// The first Ctrl-C asks the command to end. The second one says what goes on, and ends agbox.
func TestTheSecondPressSaysWhatGoesOn(t *testing.T) {
	for _, line := range []string{"create --image good", "run good wait"} {
		h, socket := serveHolding(t, "CreateSandbox")
		c := newCLI(t, socket)
		setGrace(t, time.Hour) // the answer does not come
		c.raise = func(sig syscall.Signal) {
			c.raised = append(c.raised, sig)
			close(h.release)
		}
		sent := c.onceAsked(h, syscall.SIGINT, syscall.SIGINT)
		c.exec(t.Context(), strings.Fields(line)...)
		sent.Wait()
		id := h.boxes[len(h.boxes)-1].GetSandboxId()
		want := "agbox: Ended at once. Sandbox " + id + " may be made in the background: `agbox inspect " + id + "` shows it, `agbox rm -f " + id + "` removes it.\n"
		if len(c.raised) != 1 || c.raised[0] != syscall.SIGINT || !strings.Contains(c.errs.String(), want) {
			t.Errorf("%s: raised %v, %q", line, c.raised, c.errs.String())
		}
	}
}

func TestTheSecondPressSaysWhatBecomesOfOtherWork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Dockerfile")
	if err := os.WriteFile(file, []byte("FROM good\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, c := range map[string]struct{ asks, says string }{
		"apply demo":                        {"GetSandbox", "Nothing goes on. Each file of the folder is as before or as after, and the next `agbox apply` completes what was begun."},
		"sync demo":                         {"GetSandbox", "`agbox sync demo` goes on from there."},
		"cp " + file + " demo:/x":           {"Resolve", "Nothing goes on. What was copied until now stays; the same `agbox cp` copies all again."},
		"image pull good":                   {"PullImage", "The pull ends, unless a sandbox or another command waits for it too"},
		"image build " + filepath.Dir(file): {"BuildImage", "The build ends; the engine keeps the steps that are done."},
		"build --image good":                {"BuildSandboxImages", "The build ends, unless a sandbox or another command waits for it too"},
	} {
		t.Run(c.asks+" of "+strings.Fields(line)[0], func(t *testing.T) {
			h, socket := serveHolding(t, c.asks)
			cli := newCLI(t, socket)
			cli.raise = func(sig syscall.Signal) {
				cli.raised = append(cli.raised, sig)
				close(h.release)
			}
			sent := cli.onceAsked(h, syscall.SIGINT, syscall.SIGINT)
			cli.exec(t.Context(), strings.Fields(line)...)
			sent.Wait()
			if !strings.Contains(cli.errs.String(), "agbox: Ended at once. ") || !strings.Contains(cli.errs.String(), c.says) {
				t.Errorf("raised %v, %q", cli.raised, cli.errs.String())
			}
		})
	}
}

// What takes over the signals for its own end has the next press for itself.
func TestTheSecondPressGoesToWhatCleansUp(t *testing.T) {
	c := newCLI(t, "")
	c.signals = make(chan os.Signal)
	outer, outerDone := c.interruptible(t.Context())
	c.signals <- syscall.SIGINT
	<-outer.Done()
	inner, innerDone := c.interruptible(t.Context())
	c.signals <- syscall.SIGINT
	<-inner.Done()
	if len(c.raised) > 0 {
		t.Errorf("raised %v at the first press for the inner one", c.raised)
	}
	c.signals <- syscall.SIGTERM
	innerDone()
	outerDone()
	want := "agbox: Ended at once. Sandboxes and commands go on in the background: `agbox ls` and `agbox ps` show them, `agbox stop` and `agbox kill` end them.\n"
	if len(c.raised) != 1 || c.raised[0] != syscall.SIGTERM || c.errs.String() != want {
		t.Errorf("raised %v, %q", c.raised, c.errs.String())
	}
}
