package ids

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
)

const mainPrefix = "main-"

// mainLen is the maximum length of the id of a main command in bytes. It never changes,
// because running supervisors know the ids that resulted from it.
const mainLen = 64

// mainRoom is the length reserved for "-" and the number of a run, from 2 on.
const mainRoom = 7

// ambiguous matches ids that end like the id of another sandbox with the number of a
// run or with a hash.
var ambiguous = regexp.MustCompile(`-([0-9]+|[0-9a-f]{8})$`)

// Main returns the exec id of a sandbox's own command in the first run of its
// container; MainRun has those of later runs. The ids of different sandboxes differ: a
// sandbox id that is too long or ambiguous gets a short hash.
func Main(sandboxID string) string {
	if len(mainPrefix)+len(sandboxID)+mainRoom <= mainLen && !ambiguous.MatchString(sandboxID) {
		return mainPrefix + sandboxID
	}
	sum := sha256.Sum256([]byte(sandboxID))
	hash := "-" + hex.EncodeToString(sum[:4])
	return mainPrefix + sandboxID[:min(len(sandboxID), mainLen-len(mainPrefix)-len(hash)-mainRoom)] + hash
}

// MainRun returns the exec id of a sandbox's own command in a run of its container. main
// is the id in the first run. Runs are counted from 1.
func MainRun(main string, run uint32) string {
	if run <= 1 {
		return main
	}
	return main + "-" + strconv.FormatUint(uint64(run), 10)
}

// MayBeMain reports whether execID could be the result of Main for some sandbox. A
// caller may have given such an id to another exec.
func MayBeMain(execID string) bool { return strings.HasPrefix(execID, mainPrefix) }

// IsMain reports whether execID is the result of Main for the sandbox, with or without
// the number of a run.
func IsMain(sandboxID, execID string) bool {
	if !MayBeMain(execID) {
		return false // the common case, without computing Main
	}
	rest, ok := strings.CutPrefix(execID, Main(sandboxID))
	if !ok || rest == "" {
		return ok
	}
	n, err := strconv.Atoi(strings.TrimPrefix(rest, "-"))
	return err == nil && n >= 2 && rest == "-"+strconv.Itoa(n) && len(rest) <= mainRoom
}
