package attacks

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/results"
)

// place is an engine, and a user of it, for which the tests of this package run once more:
// in a process of their own, which is this test binary.
type place struct {
	words string
	// command returns the command of the process.
	command func(t *testing.T, args []string) *exec.Cmd
	// unfit are the tests that cannot run there, each with its reason.
	unfit map[string]string
	// few are the tests that run there unless all are wanted.
	few []string
}

// ordinaryUser runs the tests, and all of agbox, in the place "member".
const ordinaryUser = 64330

// Reasons why tests cannot run somewhere.
const (
	brings  = "it brings its user, or its engine, itself"
	nobodys = "it has a sandbox write to mounted files, which belong to nobody in a user namespace"
	asRoot  = "the test itself needs root, for example to act as several users or to look into processes of root"
	fenced  = "the rules that keep sandboxes from the host and from each other need a daemon of root (docs/security.md)"
	policed = "the operator sets a policy for daemons of users in /etc/agbox"
	leaves  = "root of a sandbox leaves files of root in the mounted folder, which the user can neither read nor remove"
)

// inNamespaces is the place whose engine gives containers user namespaces.
const inNamespaces = "userns"

var places = map[string]place{
	inNamespaces: {
		words: "the engine gives containers user namespaces",
		command: func(t *testing.T, args []string) *exec.Cmd {
			program, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			dir, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			images := []string{harness.ImageBusybox, harness.ImageDebian}
			if *everywhere {
				images = append(images, harness.ImageRedis)
			}
			p := engine.New(t, images, engine.RemapUsers())
			cmd := p.Inside("env", append([]string{"--chdir=" + dir, program}, args...)...)
			cmd.Env = append(os.Environ(), "DOCKER_HOST="+p.Host())
			return cmd
		},
		unfit: map[string]string{
			"TestSandboxesWorkInUserNamespaces":                    brings,
			"TestMountsInUserNamespacesGiveTheRightsOfEverybody":   brings,
			"TestAJournalThatASandboxLeavesIsNoInstruction":        nobodys,
			"TestARepositoryThatASandboxLeavesIsNamed":             nobodys,
			"TestASandboxCannotChangeRepositoriesInAMountedFolder": nobodys,
			"TestAWorktreeWorksMountedAndCopied":                   nobodys,
			"TestCoversAreLiftedByFlagOnlyAndCannotBeAvoided":      nobodys,
			"TestGitWorksInACoveredWorkspace":                      nobodys,
			"TestSubmodulesWorkMountedAndCopied":                   nobodys,
			"TestWhatAnAgentLeavesIsAskedAboutBeforeTheNextRun":    nobodys,
			"TestASandboxThatHidesItsFoldersIsStopped":             "root of a sandbox cannot take the folder from the daemon's user in a user namespace",
			"TestTheScreenShowsEachKindOfRequest":                  "it mounts from folders that only their user may enter, which agbox refuses in user namespaces",
			// See docs/security.md.
			"TestRootInsideDoesNotStopItsSandboxBySignalsOrLimits/" + manySignals: "PID 1 has no id of its own in a user namespace, so the kernel hides the senders when its queue is full",
		},
		few: []string{"TestFilesThatLeadOutOfTheSandboxAreClosed", "TestSettingsOfAnImageDoNotChangeTheSupervisor", "TestTheLogsStayReadableWhenASandboxIsReclaimed"},
	},
	"member": {
		words: "the daemon is of an ordinary user in group docker",
		command: func(t *testing.T, args []string) *exec.Cmd {
			cmd := exec.Command("/proc/self/exe", args...) // the user may not reach the file by its path
			user := new(harness.Install)
			asMemberOfDocker(t, ordinaryUser)(user)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user.Who}
			cmd.Env = append(os.Environ(), "HOME=/nonexistent") // as Debian calls it
			return cmd
		},
		unfit: map[string]string{
			"TestADNSServerOfTheHostIsReachedOnItsPortOnly":             asRoot,
			"TestAFallbackFolderThatAnotherUserMadeFirstIsRefused":      asRoot,
			"TestAMountedWorkspaceOfAnotherUserIsNoDubiousOwnership":    asRoot,
			"TestASandboxReachesNoIPv6AddressOfItsHost":                 asRoot,
			"TestASandboxReachesNoLinkLocalAddress":                     asRoot,
			"TestASocketThatOthersCanReplaceIsRefused":                  asRoot,
			"TestAWorktreeWorksMountedAndCopied":                        asRoot,
			"TestAnUpgradeExecutesTheBinaryThatItChecked":               asRoot,
			"TestAnUpgradeRefusesABinaryThatOthersCanReplace":           asRoot,
			"TestHardLinksAreNotManyFilesOnTheHost":                     asRoot,
			"TestNothingIsSentToAListenerOfAnotherUser":                 asRoot,
			"TestPlacesOfMountsThatLeadElsewhereStayInTheSandbox":       asRoot,
			"TestRootInsideDoesNotEndOrReplaceTheSupervisor":            asRoot,
			"TestRootInsideDoesNotStopItsSandboxBySignalsOrLimits":      asRoot,
			"TestSettingsOfAnImageDoNotChangeTheSupervisor":             asRoot,
			"TestSubmodulesWorkMountedAndCopied":                        asRoot,
			"TestVariablesDoNotChangeTheSupervisor":                     asRoot,
			"TestVolumesOfAnImageHideNothingAndGoWithTheSandbox":        asRoot,
			"TestWorkOfAnApplyThatStoppedHalfwayIsNotLost":              asRoot,
			"TestADaemonStartsWithoutInotifyInstances":                  brings,
			"TestADaemonThatCannotMakeRulesAgainstTheHostSaysSo":        brings,
			"TestARemovalWhoseDaemonIsKilledWhileItReclaimsGoesOn":      brings,
			"TestASandboxThatFillsItsFoldersOnTheHostIsStopped/append":  brings,
			"TestASandboxThatFillsItsFoldersOnTheHostIsStopped/files":   brings,
			"TestASandboxThatHidesItsFoldersIsStopped":                  brings,
			"TestMountsInUserNamespacesGiveTheRightsOfEverybody":        brings,
			"TestSandboxesWorkInUserNamespaces":                         brings,
			"TestTheLogsStayReadableWhenASandboxIsReclaimed":            brings,
			"TestWhatRootInASandboxLeavesIsRemovedByADaemonWithoutRoot": brings,
			"TestASandboxDoesNotReachItsNeighbours":                     fenced,
			"TestASandboxReachesNoAddressOfItsHost":                     fenced,
			"TestASandboxReachesNoPublishedPortOfAnother":               fenced,
			"TestOnlyTheCallerOrTheOperatorLiftsTheRulesAgainstTheHost": fenced,
			"TestRulesAgainstTheHostSurviveTheDaemonAndComeBack":        fenced,
			"TestADaemonDoesNotStartWithAPolicyThatOthersCanChange":     policed,
			"TestAPolicyBoundsWhatAnybodyMayAskFor":                     policed,
			"TestAPolicyBoundsWhatWasCreatedBeforeIt":                   policed,
			"TestAJournalThatASandboxLeavesIsNoInstruction":             leaves,
			"TestARepositoryThatASandboxLeavesIsNamed":                  leaves,
			"TestASandboxCannotChangeRepositoriesInAMountedFolder":      leaves,
			"TestGitWorksInACoveredWorkspace":                           leaves,
			"TestWhatAnAgentLeavesIsAskedAboutBeforeTheNextRun":         leaves,
			"TestASandboxThatFillsItsFoldersOnTheHostIsStopped/held":    "a daemon without root cannot see the open files of processes of root (docs/security.md)",
			"TestASandboxStartsNoExecsThroughItsOwnSocket":              "it builds a program, and the user has no caches of Go",
			"TestNothingOfOthersAndOfTheSystemLeavesTheHost":            "the user may not read what is refused, which another sentence says",
		},
		few: []string{"TestCallsThatReachTheHostThroughTheKernelAreRefused", "TestAProcessBetweenTheDaemonAndTheSupervisorIsRefused", "TestAStolenTokenSpeaksForNobody"},
	},
}

// once are the tests that are about no place.
var once = []string{"TestAttacksAreHeldElsewhere", "TestTheTestsOfPlacesExist", "TestTheListOfAttacksIsTrue", "TestTheThreatModelIsTrue"}

// held finds the last line of a process of this package.
var held = regexp.MustCompile(`(?m)^(\d+) of \d+ attacks held$`)

func TestAttacksAreHeldElsewhere(t *testing.T) {
	if !*everywhere {
		t.Parallel()
	}
	for _, name := range slices.Sorted(maps.Keys(places)) {
		t.Run(name, func(t *testing.T) {
			where := places[name]
			row := table.Row(t, 127, where.words, 1)
			args := []string{"-place=" + name, "-binaries=" + harness.Binaries, "-test.parallel=4"}
			if until, ok := t.Deadline(); ok {
				args = append(args, fmt.Sprint("-test.timeout=", time.Until(until)-time.Minute))
			}
			if *everywhere {
				args = append(args, "-test.skip="+pattern(slices.Concat(slices.Collect(maps.Keys(where.unfit)), once)))
			} else {
				args = append(args, "-test.run="+pattern(where.few))
			}
			output, err := where.command(t, args).CombinedOutput()
			count := held.FindSubmatch(output)
			if err != nil || count == nil || string(count[1]) == "0" {
				t.Errorf("the attacks end with %v:\n%s", err, output)
				return
			}
			row.Note("%s there", count[0])
			if !*everywhere {
				return
			}
			reasons := make(map[string][]string)
			for _, test := range slices.Sorted(maps.Keys(where.unfit)) {
				reasons[where.unfit[test]] = append(reasons[where.unfit[test]], test)
			}
			for _, reason := range slices.Sorted(maps.Keys(reasons)) {
				row.Note("left out, because %s: %s", reason, strings.Join(reasons[reason], ", "))
			}
		})
	}
}

// pattern matches some tests, and no others. A slash is before a part of a test.
func pattern(tests []string) string {
	var words []string
	for _, test := range tests {
		words = append(words, "^"+strings.ReplaceAll(test, "/", "$/^")+"$")
	}
	return strings.Join(words, "|")
}

func TestTheTestsOfPlacesExist(t *testing.T) {
	files, _ := filepath.Glob("*_test.go")
	sources := ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources += string(text)
	}
	for name, where := range places {
		for _, test := range slices.Concat(slices.Collect(maps.Keys(where.unfit)), where.few, once) {
			test, part, _ := strings.Cut(test, "/")
			if !results.Exists(repository, results.Test{Folder: here, Name: test}) || part != "" && !strings.Contains(sources, strconv.Quote(part)) {
				t.Errorf("%s names %s/%s, which does not exist", name, test, part)
			}
			if slices.Contains(where.few, test) && where.unfit[test] != "" {
				t.Errorf("%s names %s as fit and as unfit", name, test)
			}
		}
	}
}
