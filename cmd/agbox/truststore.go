package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/paths"
)

// maxAnswer bounds a stored answer, in bytes. A question has at most nine files of at most
// 1 MiB each.
const maxAnswer = 32 << 20

// trustFile is a file of a question.
type trustFile struct {
	// Path is absolute.
	Path string `json:"path"`
	// Content is stored to show later what changed. It is empty if Secret is set.
	Content string `json:"content,omitempty"`
	// Secret marks content that is part of the digest but never stored.
	Secret bool `json:"secret,omitempty"`
	// Digest is the SHA-256 of the content, in hexadecimal.
	Digest string `json:"sha256"`
}

// newTrustFile returns a trustFile. For a secret file, it keeps only the digest of the content.
func newTrustFile(path string, content []byte, secret bool) trustFile {
	sum := sha256.Sum256(content)
	f := trustFile{Path: path, Secret: secret, Digest: hex.EncodeToString(sum[:])}
	if !secret {
		f.Content = string(content)
	}
	return f
}

// hostRequest is one access to the host that the files request.
type hostRequest struct {
	// Text describes the request for people.
	Text string `json:"text"`
	// Where is the position in the file, such as "agbox.yaml:4"; may be empty.
	Where string `json:"where,omitempty"`
	// Dangerous marks a request that weakens the protection of the host.
	Dangerous bool `json:"dangerous,omitempty"`
}

// trustQuestion is what the user is asked.
type trustQuestion struct {
	// Path is the absolute path of the file that refers to all others. There is one answer
	// per path.
	Path     string        `json:"path"`
	Files    []trustFile   `json:"files"`
	Requests []hostRequest `json:"requests"`
	// Title begins the screen, instead of the usual sentence.
	Title string `json:"-"`
}

// digest identifies the question by the content of its files and by their requests. It
// ignores the positions of the requests, because the content determines them.
func (q trustQuestion) digest() string {
	sum := sha256.New()
	add := func(parts ...string) {
		for _, p := range parts {
			// Write the length too, so that different lists never have the same bytes.
			_, _ = fmt.Fprintf(sum, "%d:%s", len(p), p)
		}
	}
	add("agbox trust 1", q.Path)
	for _, f := range q.Files {
		add("file", f.Path, f.Digest)
	}
	for _, r := range q.Requests {
		add("request", r.Text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// trustAnswer is a question that the user answered with yes.
type trustAnswer struct {
	trustQuestion
	// TrustedAt is the time of the answer.
	TrustedAt time.Time `json:"trusted_at"`
	// Sum is the digest of the question. It detects a damaged answer.
	Sum string `json:"digest"`
}

// trustStore keeps answers, one file per path, in a directory that only its user can read.
//
// A sandbox file in a directory from elsewhere can request access to the host: mounts,
// copies, variables, ports. The user is asked once. The answer is valid for exactly this
// content and no other requests; after any change of these the user is asked again.
type trustStore struct {
	dir string // created with the first answer
}

// newTrustStore returns the store of this install.
func newTrustStore() (trustStore, error) {
	install, err := paths.FromEnv()
	return trustStore{dir: install.Trust()}, err
}

// trusted reports whether the user answered this question with yes, or one that requests
// more for the same content. before is the newest answer for the same path, even if it is for
// another question; nil if there is none.
func (s trustStore) trusted(q trustQuestion) (ok bool, before *trustAnswer, err error) {
	a, err := s.read(s.name(q.Path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil, nil
	case err != nil:
		return false, nil, err
	}
	return a.covers(q), a, nil
}

// covers reports whether the answer is for the same content and for all of the requests. An
// image that was fetched since, for example, is not requested any more.
func (a *trustAnswer) covers(q trustQuestion) bool {
	return a.Path == q.Path && len(missingFrom(q.Requests, a.Requests)) == 0 &&
		slices.EqualFunc(a.Files, q.Files, func(x, y trustFile) bool { return x.Path == y.Path && x.Digest == y.Digest })
}

// remember stores the answer yes. It replaces an earlier answer for the same path.
func (s trustStore) remember(q trustQuestion, now time.Time) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	text, err := json.MarshalIndent(trustAnswer{trustQuestion: q, TrustedAt: now.UTC(), Sum: q.digest()}, "", "  ")
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(s.dir, ".new-*") // created with mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // fails, as intended, after the rename
	_, err = temp.Write(text)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), s.name(q.Path))
}

// list returns all answers, ordered by path. It skips files that are not valid answers.
func (s trustStore) list() ([]trustAnswer, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []trustAnswer
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), answerSuffix) {
			continue
		}
		if a, err := s.read(filepath.Join(s.dir, e.Name())); err == nil {
			all = append(all, *a)
		}
	}
	slices.SortFunc(all, func(a, b trustAnswer) int { return strings.Compare(a.Path, b.Path) })
	return all, err
}

// revoke removes the answer for a path. It fails with fs.ErrNotExist if there is none.
func (s trustStore) revoke(path string) error { return os.Remove(s.name(path)) }

const answerSuffix = ".json"

func (s trustStore) name(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:])+answerSuffix)
}

// read reads an answer. It accepts only a regular file that belongs to this user and that
// no other user can write.
func (s trustStore) read(name string) (*trustAnswer, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close() // was only read
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil, fmt.Errorf("%s is not a file that only its owner can write: remove it, and answer again", name)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxAnswer))
	if err != nil {
		return nil, err
	}
	a := new(trustAnswer)
	if err := json.Unmarshal(text, a); err != nil {
		return nil, fmt.Errorf("%s cannot be read (%w): remove it, and answer again", name, err)
	}
	if a.Sum != a.trustQuestion.digest() || s.name(a.Path) != name {
		return nil, fmt.Errorf("%s is damaged: remove it, and answer again", name)
	}
	return a, nil
}

// trustChange is the difference between a question and an earlier answer.
type trustChange struct {
	// New are the added requests, Gone the removed ones.
	New, Gone []hostRequest
	// Files are the files that differ.
	Files []fileChange
}

// fileChange is one file that differs.
type fileChange struct {
	Path string
	// Before and After are the contents. For a changed file, both are empty if one of
	// them is secret.
	Before, After string
	// Added is true for a new file, Removed for one that no longer belongs to the question.
	Added, Removed bool
}

// since compares a question with an earlier answer.
func (q trustQuestion) since(before *trustAnswer) trustChange {
	c := trustChange{New: missingFrom(q.Requests, before.Requests), Gone: missingFrom(before.Requests, q.Requests)}
	for _, f := range q.Files {
		i := slices.IndexFunc(before.Files, func(o trustFile) bool { return o.Path == f.Path })
		switch {
		case i < 0:
			c.Files = append(c.Files, fileChange{Path: f.Path, After: f.Content, Added: true})
		case before.Files[i].Digest != f.Digest:
			one := fileChange{Path: f.Path}
			if !f.Secret && !before.Files[i].Secret {
				one.Before, one.After = before.Files[i].Content, f.Content
			}
			c.Files = append(c.Files, one)
		}
	}
	for _, f := range before.Files {
		if !slices.ContainsFunc(q.Files, func(o trustFile) bool { return o.Path == f.Path }) {
			c.Files = append(c.Files, fileChange{Path: f.Path, Before: f.Content, Removed: true})
		}
	}
	return c
}

// missingFrom returns the requests of list whose text is not in other.
func missingFrom(list, other []hostRequest) []hostRequest {
	var all []hostRequest
	for _, r := range list {
		if !slices.ContainsFunc(other, func(o hostRequest) bool { return o.Text == r.Text }) {
			all = append(all, r)
		}
	}
	return all
}
