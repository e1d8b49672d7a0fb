package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

func TestTheVersionIsAFlagToo(t *testing.T) {
	for _, flag := range []string{"--version", "-v"} {
		if code, out, errs := agbox(t, "", flag); code != 0 || out != "agbox v-test\n" || errs != "" {
			t.Errorf("%s: code %d, %q, %q", flag, code, out, errs)
		}
	}
}

func TestHelpOfAWordThatIsNoCommandFails(t *testing.T) {
	for words, want := range map[string]string{
		"help nosuch":       "agbox: agbox has no command \"nosuch\".\nagbox: See `agbox --help`.\n",
		"help crate":        "Did you mean create?\nagbox: See `agbox --help`.\n",
		"help daemon nosch": "agbox: agbox daemon has no command \"nosch\".\nagbox: See `agbox daemon --help`.\n",
		"help ls more":      "agbox: agbox ls has no command \"more\".\nagbox: See `agbox ls --help`.\n",
	} {
		if code, out, errs := agbox(t, "", strings.Fields(words)...); code != codeUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q, %q", words, code, out, errs)
		}
	}
	for _, words := range []string{"help", "help daemon", "help daemon stop", "help exit-codes"} {
		if code, out, errs := agbox(t, "", strings.Fields(words)...); code != 0 || len(out) < 100 || errs != "" {
			t.Errorf("%s: code %d, %q, %q", words, code, out, errs)
		}
	}
	if _, out, _ := agbox(t, "", "__complete", "help", "daemon", "st"); !strings.HasPrefix(out, "start\t") {
		t.Errorf("completion: %q", out)
	}
}

func TestUnknownFlagsAndWordsOfDockerAreAnswered(t *testing.T) {
	for words, want := range map[string]string{
		"ls --al":                          "agbox ls has no flag --al. Did you mean --all?",
		"create --imge x":                  "agbox create has no flag --imge. Did you mean --image?",
		"ls --qiuet":                       "Did you mean --quiet?",
		"create -l a=b":                    "agbox create has no flag -l. Did you mean --label?",
		"run --net host debian ls":         "agbox run has no flag --net. A sandbox has a private network of its own",
		"create --net=host":                "agbox create has no flag --net. A sandbox has a private network",
		"ls --network x":                   "agbox ls has no flag --network.\n",
		"ls -Z":                            "agbox ls has no flag -Z.\n",
		"images":                           `agbox has no command "images". ` + "`agbox image ls` lists images.",
		"daemon images":                    "agbox daemon has no command \"images\".\n",
		"config validate --devcontaine=xx": "Did you mean --devcontainer?",
	} {
		if code, _, errs := agbox(t, "", strings.Fields(words)...); code != codeUsage && code != codeExecAgbox || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q", words, code, errs)
		}
	}
}

// A prefix that many flags share is no reason to list them all.
func TestAtMostThreeWordsAreSuggested(t *testing.T) {
	for words, want := range map[string]string{
		"create --no x": "Did you mean --no-wait or --no-autostart?",
		"st":            "Did you mean stop or start or stats?\n",
		"create --me x": "Did you mean --memory",
	} {
		if _, _, errs := agbox(t, "", strings.Fields(words)...); !strings.Contains(errs, want) {
			t.Errorf("%s: %q, want %q", words, errs, want)
		}
	}
}

// What the tables of foreign words explain must not exist.
func TestForeignWordsAreNoCommandsAndNoFlags(t *testing.T) {
	root := newCLI(t, "").rootCommand()
	for word := range foreignCommands {
		if cmd, _, err := root.Find([]string{word}); err == nil && cmd != root {
			t.Errorf("%s is a command", word)
		}
	}
	for _, name := range []string{"create", "run"} {
		cmd, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		for flag := range foreignFlags {
			if cmd.Flags().Lookup(flag) != nil {
				t.Errorf("agbox %s has --%s", name, flag)
			}
		}
	}
}

// Each command that a sentence of the tables names must exist.
func TestForeignWordsNameCommandsThatExist(t *testing.T) {
	root := newCLI(t, "").rootCommand()
	for _, sentences := range []map[string]string{foreignCommands, foreignFlags} {
		for word, sentence := range sentences {
			for i, part := range strings.Split(sentence, "`") {
				words := strings.Fields(part)
				if i%2 == 0 || len(words) < 2 || words[0] != "agbox" {
					continue
				}
				var cmd *cobra.Command
				var err error
				if cmd, words, err = root.Find(words[1:]); err != nil || cmd == root || cmd.HasSubCommands() && len(words) > 0 {
					t.Errorf("%s: %q names no command", word, part)
				}
			}
		}
	}
}

func TestASignalIsAFlagOfKill(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	agbox(t, socket, "exec", "-d", "--name", "job", "demo", "wait")
	want := []syscall.Signal{syscall.SIGUSR1, syscall.SIGINT, syscall.SIGHUP, syscall.SIGKILL}
	for _, signal := range []string{"-USR1", "-SIGINT", "-1", "-9"} {
		if code, _, errs := agbox(t, socket, "kill", signal, "job"); code != 0 {
			t.Errorf("%s: code %d, %q", signal, code, errs)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.signals) != len(want) {
		t.Fatalf("signals %v", d.signals)
	}
	for i, sig := range d.signals {
		if sig != int32(want[i]) {
			t.Errorf("signal %d is %d, want %v", i+1, sig, want[i])
		}
	}
}
