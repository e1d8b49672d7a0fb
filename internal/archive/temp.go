package archive

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

const (
	tempPrefix = ".agbox-"
	tempSuffix = ".tmp"
)

// TempName is a new name for a file that gets the name of another one when it is
// whole.
func TempName() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return tempPrefix + hex.EncodeToString(id[:]) + tempSuffix
}

// IsTemp tells whether a name may be one of TempName.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}
