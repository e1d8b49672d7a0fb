package ids

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
)

const mainPrefix = "main-"

// mainRoom is left for "-" and the number of a life, from 2 on.
const mainRoom = 7

// ambiguous are ids that, behind the prefix, would read like the id of another
// sandbox with the number of a life or a hash behind it.
var ambiguous = regexp.MustCompile(`-([0-9]+|[0-9a-f]{8})$`)

// Main returns the exec id of a sandbox's own command in the first life of its
// container; "-2", "-3" and so on are added in later ones. No two sandboxes get the
// same one: a short hash keeps apart what is too long or would read like another.
func Main(sandboxID string) string {
	if len(mainPrefix)+len(sandboxID)+mainRoom <= MaxLen && !ambiguous.MatchString(sandboxID) {
		return mainPrefix + sandboxID
	}
	sum := sha256.Sum256([]byte(sandboxID))
	hash := "-" + hex.EncodeToString(sum[:4])
	return mainPrefix + sandboxID[:min(len(sandboxID), MaxLen-len(mainPrefix)-len(hash)-mainRoom)] + hash
}

// IsMain tells whether execID is one that Main, with the number of a life or
// without, gives the sandbox.
func IsMain(sandboxID, execID string) bool {
	if !strings.HasPrefix(execID, mainPrefix) {
		return false // as nearly all: without a look at the sandbox's id
	}
	rest, ok := strings.CutPrefix(execID, Main(sandboxID))
	if !ok || rest == "" {
		return ok
	}
	n, err := strconv.Atoi(strings.TrimPrefix(rest, "-"))
	return err == nil && n >= 2 && rest == "-"+strconv.Itoa(n) && len(rest) <= mainRoom
}
