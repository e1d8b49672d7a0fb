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

// TempName returns a new name for a file that will be renamed when it is complete.
func TempName() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return tempPrefix + hex.EncodeToString(id[:]) + tempSuffix
}

// IsTemp reports whether a name has the form of TempName.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}
