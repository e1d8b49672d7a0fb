package daemon

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/agbox/agbox/internal/paths"
)

// maxAddress bounds the stored address, in bytes.
const maxAddress = 4096

// StoredEngine returns the address of the engine that has the containers of the install. It
// is empty before the first contact. A daemon that any shell may start must not take it from
// the environment of that shell.
func StoredEngine(install paths.Install) (string, error) {
	raw, err := os.ReadFile(install.EngineAddress())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case len(raw) > maxAddress:
		return "", errors.New(install.EngineAddress() + " is too long for an address")
	}
	return strings.TrimSpace(string(raw)), nil
}

// storeEngine records the address of an engine that was seen to be the install's.
func storeEngine(install paths.Install, address string) error {
	if known, err := StoredEngine(install); err == nil && known == address {
		return nil
	}
	file := install.EngineAddress()
	if err := os.WriteFile(file+".new", []byte(address+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
