package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// twoRequests is a question.
func twoRequests() trustQuestion {
	return trustQuestion{
		Path:  "/src/agbox.yaml",
		Files: []trustFile{newTrustFile("/src/agbox.yaml", []byte("image: a\n"), false), newTrustFile("/src/.env", []byte("TOKEN=x\n"), true)},
		Requests: []hostRequest{
			{Text: "mount /src at /workspace, writable", Where: "agbox.yaml:2"},
			{Text: "publish 127.0.0.1:80", Where: "agbox.yaml:3", Dangerous: true},
		},
	}
}

func TestAnAnswerHoldsForThisQuestionAlone(t *testing.T) {
	s := trustStore{dir: filepath.Join(t.TempDir(), "trust")}
	if ok, before, err := s.trusted(twoRequests()); ok || before != nil || err != nil {
		t.Fatalf("before any answer: %v, %v, %v", ok, before, err)
	}
	if err := s.remember(twoRequests(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if ok, _, err := s.trusted(twoRequests()); !ok || err != nil {
		t.Fatalf("the same question: %v, %v", ok, err)
	}
	moved := twoRequests()
	moved.Requests[0].Where = "agbox.yaml:7"
	if ok, _, _ := s.trusted(moved); !ok {
		t.Error("a request at another line of the same content is asked again")
	}
	for name, change := range map[string]func(*trustQuestion){
		"content of a file": func(q *trustQuestion) { q.Files[0] = newTrustFile(q.Files[0].Path, []byte("image: b\n"), false) },
		"secret content":    func(q *trustQuestion) { q.Files[1] = newTrustFile(q.Files[1].Path, []byte("TOKEN=y\n"), true) },
		"path of a file":    func(q *trustQuestion) { q.Files[1].Path = "/src/.env2" },
		"a request more":    func(q *trustQuestion) { q.Requests = append(q.Requests, hostRequest{Text: "mount /etc"}) },
		"another request":   func(q *trustQuestion) { q.Requests[0].Text = "mount /src at /workspace" },
		"split otherwise": func(q *trustQuestion) {
			q.Requests = []hostRequest{{Text: q.Requests[0].Text + q.Requests[1].Text}}
		},
		"another place": func(q *trustQuestion) { q.Path = "/other/agbox.yaml" },
	} {
		q := twoRequests()
		change(&q)
		if ok, _, err := s.trusted(q); ok || err != nil {
			t.Errorf("%s: trusted %v, %v", name, ok, err)
		}
	}
}

func TestAnAnswerCanBeListedAndRevoked(t *testing.T) {
	s := trustStore{dir: filepath.Join(t.TempDir(), "trust")}
	if err := s.remember(twoRequests(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	all, err := s.list()
	if err != nil || len(all) != 1 || all[0].Path != "/src/agbox.yaml" || !all[0].TrustedAt.Equal(time.Unix(1, 0)) {
		t.Fatalf("listed %+v, %v", all, err)
	}
	if err := s.revoke("/src/agbox.yaml"); err != nil {
		t.Fatal(err)
	}
	if ok, _, err := s.trusted(twoRequests()); ok || err != nil {
		t.Errorf("revoked, and yet %v, %v", ok, err)
	}
	if err := s.revoke("/src/agbox.yaml"); !os.IsNotExist(err) {
		t.Errorf("revoking twice: %v", err)
	}
}

func TestAnAnswerHoldsForFewerRequestsOfTheSameContent(t *testing.T) {
	s := trustStore{dir: filepath.Join(t.TempDir(), "trust")}
	if err := s.remember(twoRequests(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	fewer := twoRequests()
	fewer.Requests = fewer.Requests[1:]
	more := twoRequests()
	more.Requests = append(more.Requests, hostRequest{Text: "more"})
	other := twoRequests()
	other.Requests, other.Files = nil, other.Files[1:]
	for name, c := range map[string]struct {
		q    trustQuestion
		want bool
	}{"fewer": {fewer, true}, "more": {more, false}, "fewer, of other files": {other, false}} {
		if ok, _, err := s.trusted(c.q); ok != c.want || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}

func TestNothingSecretIsStored(t *testing.T) {
	s := trustStore{dir: filepath.Join(t.TempDir(), "trust")}
	if err := s.remember(twoRequests(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.name("/src/agbox.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "TOKEN") || !strings.Contains(string(text), "image: a") {
		t.Errorf("stored:\n%s", text)
	}
	for name, want := range map[string]os.FileMode{s.dir: 0o700, s.name("/src/agbox.yaml"): 0o600} {
		if st, err := os.Stat(name); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v (%v)", name, st.Mode(), want, err)
		}
	}
}

func TestAForgedAnswerIsNone(t *testing.T) {
	for name, forge := range map[string]func(t *testing.T, s trustStore, file string){
		"changed by hand": func(t *testing.T, _ trustStore, file string) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text = []byte(strings.Replace(string(text), "127.0.0.1:80", "0.0.0.0:80", 1))
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"writable by others": func(t *testing.T, _ trustStore, file string) {
			if err := os.Chmod(file, 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"a link": func(t *testing.T, s trustStore, file string) {
			if err := os.Rename(file, filepath.Join(s.dir, "other")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("other", file); err != nil {
				t.Fatal(err)
			}
		},
		"of another path": func(t *testing.T, s trustStore, file string) {
			q := twoRequests()
			q.Path = "/harmless/agbox.yaml"
			if err := s.remember(q, time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(s.name(q.Path), file); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := trustStore{dir: filepath.Join(t.TempDir(), "trust")}
			if err := s.remember(twoRequests(), time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			forge(t, s, s.name(twoRequests().Path))
			if ok, _, err := s.trusted(twoRequests()); ok || err == nil {
				t.Errorf("trusted %v, error %v", ok, err)
			}
		})
	}
}

func TestADifferenceNamesWhatIsNewAndWhatIsGone(t *testing.T) {
	before := &trustAnswer{trustQuestion: twoRequests()}
	q := twoRequests()
	q.Requests = []hostRequest{q.Requests[1], {Text: "mount /home at /h"}}
	q.Files = []trustFile{newTrustFile("/src/agbox.yaml", []byte("image: b\n"), false), newTrustFile("/src/compose.yaml", []byte("x"), false)}
	c := q.since(before)
	if len(c.New) != 1 || c.New[0].Text != "mount /home at /h" || len(c.Gone) != 1 || c.Gone[0].Text != before.Requests[0].Text {
		t.Errorf("new %v, gone %v", c.New, c.Gone)
	}
	want := []fileChange{
		{Path: "/src/agbox.yaml", Before: "image: a\n", After: "image: b\n"},
		{Path: "/src/compose.yaml", After: "x", Added: true},
		{Path: "/src/.env", Removed: true},
	}
	if len(c.Files) != len(want) {
		t.Fatalf("files %+v", c.Files)
	}
	for i := range want {
		if c.Files[i] != want[i] {
			t.Errorf("file %d is %+v, want %+v", i, c.Files[i], want[i])
		}
	}
}
