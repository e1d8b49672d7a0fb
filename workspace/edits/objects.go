package edits

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// maxRead is the maximum size in bytes of all contents that are read beside commits of a sandbox.
const maxRead = 2 * MaxContents

var errTooLarge = &excess{fmt.Sprintf("their files have more than %d GiB, or one has more than %d GiB", maxRead>>30, MaxContent>>30)}

type treeEntry struct{ mode, object string }

// twoEntries are what an earlier commit and the tip have of a path; without an object if there is
// none.
type twoEntries struct{ was, tip treeEntry }

// treeEntries returns the entries that git ls-tree prints, by path in the tree.
func treeEntries(out []byte) iter.Seq2[string, treeEntry] {
	return func(yield func(string, treeEntry) bool) {
		for entry := range strings.SplitSeq(string(out), "\x00") {
			meta, name, ok := strings.Cut(entry, "\t")
			if words := strings.Fields(meta); ok && len(words) == 3 && !yield(name, treeEntry{words[0], words[2]}) {
				return
			}
		}
	}
}

// eachChange calls do with the files that git prints with --raw -z. A merge was what its first parent has.
func eachChange(out []byte, do func(name string, two twoEntries) error) error {
	words := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(words); i += 2 {
		line := strings.TrimLeft(words[i], "\n")
		text := strings.TrimLeft(line, ":")
		meta, parents := strings.Fields(text), len(line)-len(text)
		if parents == 0 || len(meta) != 2*parents+3 {
			return &HistoryError{fmt.Errorf("git named a change as %q", words[i])}
		}
		var two twoEntries
		if meta[0] != "000000" {
			two.was = treeEntry{meta[0], meta[parents+1]}
		}
		if meta[parents] != "000000" {
			two.tip = treeEntry{meta[parents], meta[2*parents+1]}
		}
		if err := do(words[i+1], two); err != nil {
			return err
		}
	}
	return nil
}

// objects reads objects of a repository, all by one process of git. It is for one goroutine.
type objects struct {
	git *git
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	// left is how many bytes may still be read.
	left int64
}

// start starts git, if it does not run yet.
func (o *objects) start() (err error) {
	if o.cmd != nil {
		return nil
	}
	if o.left == 0 && o.git.limited {
		o.left = maxRead
	} else if o.left == 0 {
		o.left = math.MaxInt64
	}
	g := *o.git
	g.bounded = g.limited
	cmd := g.command("cat-file", "--batch")
	if o.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := started(cmd); err != nil {
		return err
	}
	o.cmd, o.out = cmd, bufio.NewReader(out)
	return g.bound(cmd.Process.Pid)
}

// close ends git.
func (o *objects) close() {
	if o.cmd != nil {
		_ = o.in.Close()
		_ = o.cmd.Process.Kill()
		_ = o.cmd.Wait() // it was killed
		o.cmd = nil
	}
}

// open returns the size of an object, and its content, which must be read before the next.
func (o *objects) open(object string) (int64, io.Reader, error) {
	if err := o.start(); err != nil {
		return 0, nil, err
	}
	_, err := io.WriteString(o.in, object+"\n")
	line := ""
	if err == nil {
		line, err = o.out.ReadString('\n')
	}
	if o.git.ctx.Err() != nil {
		return 0, nil, o.git.ctx.Err()
	}
	words := strings.Fields(line)
	if err == nil && len(words) != 3 {
		err = errors.New(strings.TrimSpace(line))
	}
	if err != nil {
		err = fmt.Errorf("git cannot read the object %s: %w", object, err)
		if o.git.limited { // it may be one of a sandbox's commits
			err = &HistoryError{err}
		}
		return 0, nil, err
	}
	size, err := strconv.ParseInt(words[2], 10, 64)
	if o.left -= size; err == nil && (o.left < 0 || o.git.limited && size > MaxContent) {
		err = errTooLarge
	}
	return size, &whole{io.LimitReader(o.out, size), o.out}, err
}

// whole reads an object, and then the line break behind it.
type whole struct {
	io.Reader
	behind *bufio.Reader
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err == io.EOF && w.behind != nil {
		if _, failed := w.behind.Discard(1); failed != nil {
			err = failed
		}
		w.behind = nil
	}
	return n, err
}

// content returns an object, or its first bytes.
func (o *objects) content(object string, most int64) ([]byte, error) {
	size, from, err := o.open(object)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	n, err := io.Copy(&out, io.LimitReader(from, most))
	return out.Bytes(), rest(n, size, from, err)
}

// rest reads the rest of an object.
func rest(n, size int64, from io.Reader, err error) error {
	if err == nil {
		var more int64
		more, err = io.Copy(io.Discard, from)
		n += more
	}
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// write writes an object to a new file.
func (o *objects) write(object, name string) error {
	size, from, err := o.open(object)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(file, from)
	return errors.Join(rest(n, size, from, err), file.Close())
}

// file describes an object as a file.
func (o *objects) file(e treeEntry) (*File, error) {
	size, from, err := o.open(e.object)
	if err != nil {
		return nil, err
	}
	f := &File{Link: e.mode == "120000", Executable: e.mode == "100755", Size: size}
	sum := sha256.New()
	n, err := io.Copy(sum, from)
	sum.Sum(f.Sum[:0])
	return f, rest(n, size, from, err)
}

const (
	// maxObjects is the maximum size of the objects of a sandbox in bytes, without those that
	// the target has, maxFiles the number of their files, and maxArchive the size of all
	// that is read.
	maxObjects = 2 << 30
	maxFiles   = 200_000
	maxArchive = 16 << 30
)

var errTooMany = fmt.Errorf("its repository has more than %d new files of objects, or more than %d GiB", maxFiles, maxObjects>>30)

// isObject matches the files of objects that count: no index, no list and no reference to other
// folders.
var isObject = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([0-9a-f]{2}/([0-9a-f]{38}|[0-9a-f]{62})|pack/pack-[0-9a-f]{40,64}\.pack)$`)
})

// unpackObjects stores the files of objects in an archive of a folder of objects in dir, and
// returns the packs. It leaves out what another folder of objects has under the same name.
func unpackObjects(in io.Reader, dir, has string) (packs []string, err error) {
	limited := &io.LimitedReader{R: in, N: maxArchive}
	size, files := int64(0), 0
	for all := tar.NewReader(limited); ; {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return packs, nil
		}
		if err != nil {
			if limited.N <= 0 {
				err = errTooMany
			}
			return nil, err
		}
		name := strings.TrimPrefix(h.Name, "objects/")
		if h.Typeflag != tar.TypeReg || !isObject().MatchString(name) {
			continue
		}
		if _, err := os.Stat(filepath.Join(has, name)); err == nil {
			continue
		}
		size, files = size+h.Size, files+1
		if size > maxObjects || files > maxFiles {
			return nil, errTooMany
		}
		if err := store(filepath.Join(dir, name), all); err != nil {
			return nil, err
		}
		if strings.HasSuffix(name, ".pack") {
			packs = append(packs, filepath.Join(dir, name))
		}
	}
}

// store writes a file that must not exist.
func store(name string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// objectName returns the name that git gives an object.
func objectName(name hash.Hash, kind string, size int64, content io.Reader) (string, error) {
	fmt.Fprintf(name, "%s %d\x00", kind, size)
	_, err := io.Copy(name, content)
	return hex.EncodeToString(name.Sum(nil)), err
}

// hashLike computes names of objects as long as another one.
func hashLike(object string) hash.Hash {
	if len(object) == hex.EncodedLen(sha256.Size) {
		return sha256.New()
	}
	return sha1.New()
}
