// Package ids generates and validates the ids of sandboxes and execs. Paths and engine
// names are built only from valid ids.
package ids

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// MaxLen is the maximum length of an id in bytes, as published. With the longest suffix
// of a log file, a name stays below the 255 bytes of a file name.
const MaxLen = 200

// maxName is the maximum length of what Sanitize returns, in bytes. Two of them in the
// name of a volume stay below the 255 bytes of a file name.
const maxName = 64

// alphabet is Crockford's base 32 in lower case: no i, l, o, u.
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// newLen gives 60 random bits. The store refuses a duplicate id, so a collision does no
// harm.
const newLen = 12

// New returns a random id.
func New() string {
	var raw [newLen]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	for i, b := range raw {
		raw[i] = alphabet[b%32]
	}
	return string(raw[:])
}

// NewUUID returns a random UUID (version 4), as clients of the published contract expect.
func NewUUID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80 // version 4, variant of RFC 9562
	return fmt.Sprintf("%x-%x-%x-%x-%x", raw[:4], raw[4:6], raw[6:8], raw[8:10], raw[10:])
}

// OfKey returns the id of what a request with this key and without an id creates. A
// repeated request gets the same id.
func OfKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	id := sum[:newLen]
	for i, b := range id {
		id[i] = alphabet[b%32]
	}
	return string(id)
}

// Valid reports whether s is a valid id: a letter or digit, then up to 199 letters,
// digits, '_', '.' or '-'. The .proto files have the same pattern.
func Valid(s string) bool {
	if s == "" || len(s) > MaxLen || !alnum(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; !alnum(c) && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

func alnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// Sanitize maps an id to lower-case letters, digits and '-', the characters that are
// safe in names of containers, networks and hosts. If that changes the id, Sanitize
// appends a short hash of it, so that different ids get different names. Of an id over 64
// bytes it keeps the beginning, with a longer hash.
func Sanitize(id string) string {
	out := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + ('a' - 'A')
		}
		return '-'
	}, id)
	if out == id && len(id) <= maxName {
		return out
	}
	sum := sha256.Sum256([]byte(id))
	if hash := hex.EncodeToString(sum[:8]); len(id) > maxName {
		return out[:maxName-1-len(hash)] + "-" + hash
	}
	return out + "-" + hex.EncodeToString(sum[:4])
}

const mainPrefix = "main-"

// mainLen is the maximum length of the id of a main command in bytes. It never changes,
// because running supervisors know the ids that resulted from it.
const mainLen = 64

// mainRoom is the length reserved for "-" and the number of a run, from 2 on.
const mainRoom = 7

// ambiguous matches ids that end like the id of another sandbox with the number of a
// run or with a hash.
var ambiguous = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-([0-9]+|[0-9a-f]{8})$`) })

// Main returns the exec id of a sandbox's own command in the first run of its
// container; MainRun has those of later runs. The ids of different sandboxes differ: a
// sandbox id that is too long or ambiguous gets a short hash.
func Main(sandboxID string) string {
	if len(mainPrefix)+len(sandboxID)+mainRoom <= mainLen && !ambiguous().MatchString(sandboxID) {
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
