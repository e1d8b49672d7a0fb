package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// BinaryName is the supervisor's file name in the daemon's directory.
const BinaryName = "agbox-init"

// tempPrefix is the name prefix of incomplete copies.
const tempPrefix = "." + BinaryName + "-"

// FindBinary returns the path of the supervisor in the directory of the running
// executable, with symbolic links resolved.
func FindBinary() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", fmt.Errorf("find the path of the running program: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), BinaryName)
	st, err := os.Stat(path)
	if err == nil && (!st.Mode().IsRegular() || st.Mode()&0o111 == 0) {
		err = errors.New("it is not an executable file")
	}
	if err != nil {
		return "", fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_INTERNAL_ERROR,
			"The supervisor %s is missing: install it in the same directory as %s.", path, self).Because(err)
	}
	return path, nil
}

// InstallBinary copies the supervisor at source into dir, under a name with the
// hash of its content, and returns the path of the copy. It reuses an intact copy
// and replaces a damaged one; running containers keep the file that they started.
// It creates dir if needed, and removes temporary files of installations that were
// killed.
func InstallBinary(source, dir string) (path string, err error) {
	sum, err := hashFile(source)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	folder, err := lockDir(dir)
	if err != nil {
		return "", err
	}
	defer folder.Close() // releases the lock
	removeTemps(folder)
	path = filepath.Join(dir, BinaryName+"-"+sum)
	if intact(path, sum) {
		return path, nil
	}
	temp, err := copyToTemp(source, dir, sum)
	if err != nil {
		return "", fmt.Errorf("the supervisor cannot be copied to %s: %w", dir, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return "", errors.Join(err, os.Remove(temp))
	}
	return path, folder.Sync()
}

// lockDir opens a directory and waits for an exclusive lock on it. The kernel
// releases the lock when the process ends, even by SIGKILL.
func lockDir(dir string) (*os.File, error) {
	folder, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), folder.Close())
	}
	return folder, nil
}

// removeTemps removes the temporary files of killed installations from a locked
// directory. It ignores errors, because a file that remains only takes space.
func removeTemps(folder *os.File) {
	names, _ := folder.Readdirnames(-1)
	for _, name := range names {
		if strings.HasPrefix(name, tempPrefix) {
			_ = os.Remove(filepath.Join(folder.Name(), name))
		}
	}
}

// intact reports whether path is a regular file with that hash and mode 0555.
func intact(path, sum string) bool {
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != 0o555 {
		return false
	}
	have, err := hashFile(path)
	return err == nil && have == sum
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() // was only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// copyToTemp writes a synced copy with mode 0555. It fails if the source changed
// since it was hashed.
func copyToTemp(source, dir, sum string) (temp string, err error) {
	in, err := os.Open(source)
	if err != nil {
		return "", err
	}
	defer in.Close() // was only read
	out, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, h), in)
	if err == nil && hex.EncodeToString(h.Sum(nil)) != sum {
		err = fmt.Errorf("%s changed while it was being copied; try again", source)
	}
	if err == nil {
		err = errors.Join(out.Chmod(0o555), out.Sync())
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return "", errors.Join(err, os.Remove(out.Name()))
	}
	return out.Name(), nil
}
