package hostfiles

import (
	"io"
	"os"
)

// MaxWork is the maximum size of the work of an agent in bytes.
const MaxWork = 64 << 10

// Work reads the file with the work of an agent. allowDangerous is as for Hold. Errors are
// fault.Errors.
func (c Checker) Work(source string, allowDangerous bool) ([]byte, error) {
	held, err := c.Hold(source, Copied, allowDangerous)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	if !held.info.Mode().IsRegular() {
		return nil, refusal("%s is no file, and the work of an agent is one: name the file that says what to do.", source)
	}
	f, err := os.Open(held.again())
	if err != nil {
		return nil, unusable(source, err)
	}
	defer func() { _ = f.Close() }() // only read
	content, err := io.ReadAll(io.LimitReader(f, MaxWork+1))
	if err != nil {
		return nil, unusable(source, err)
	}
	if len(content) > MaxWork {
		return nil, refusal("%s is larger than the 64 KiB that the work of an agent may have: name a smaller file, and give the rest as a copy or a mount.", source)
	}
	return content, nil
}
