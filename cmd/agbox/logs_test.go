package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	outStream = agboxv1.LogStream_LOG_STREAM_STDOUT
	errStream = agboxv1.LogStream_LOG_STREAM_STDERR
)

// printed prints items as logs does and returns the output.
func printed(t *testing.T, style logsStyle, f format, prefix bool, items ...client.SandboxLogItem) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs, width: func() int { return 0 }}
	p := a.logPrinter(style, f)
	if prefix {
		p.prefix, p.colour = true, false
	}
	for _, item := range items {
		if err := p.print(item.Exec, item.LogItem); err != nil {
			t.Fatal(err)
		}
	}
	return out.String(), errs.String()
}

func logPiece(id string, stream agboxv1.LogStream, offset int, at time.Time, data string) client.SandboxLogItem {
	return client.SandboxLogItem{
		Exec:    &agboxv1.ExecStatus{ExecId: id, Command: []string{"make", "all"}},
		LogItem: client.LogItem{Stream: stream, Offset: uint64(offset), Time: at, Data: []byte(data)},
	}
}

func logOver(id string, end *agboxv1.LogEnd) client.SandboxLogItem {
	return client.SandboxLogItem{Exec: &agboxv1.ExecStatus{ExecId: id, Command: []string{"make", "all"}}, LogItem: client.LogItem{End: end}}
}

func TestALineThatComesInPiecesHasOneStamp(t *testing.T) {
	at := time.Date(2026, 5, 4, 12, 0, 0, 123456789, time.UTC)
	later := at.Add(time.Second)
	stdout, stderr := printed(t, logsStyle{times: true}, formatText, false,
		logPiece("e", outStream, 0, at, "on"), logPiece("e", errStream, 0, at, "err\n"),
		logPiece("e", outStream, 2, later, "e\ntwo\nthr"), logOver("e", &agboxv1.LogEnd{}))
	first, second := at.Local().Format(lineStamp)+" ", later.Local().Format(lineStamp)+" "
	if want := first + "one\n" + second + "two\n" + second + "thr\n"; stdout != want {
		t.Errorf("stdout %q, want %q", stdout, want)
	}
	if want := first + "err\n"; stderr != want {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
}

func TestBytesPassUnchangedWithoutFlags(t *testing.T) {
	raw := "\x00\xff\x1b[31mred\x1b[0m\r\n no end"
	stdout, _ := printed(t, logsStyle{}, formatText, false, logPiece("e", outStream, 0, time.Time{}, raw), logOver("e", &agboxv1.LogEnd{}))
	if stdout != raw {
		t.Errorf("%q became %q", raw, stdout)
	}
}

func TestEachCommandHasItsPrefix(t *testing.T) {
	stdout, _ := printed(t, logsStyle{}, formatText, true,
		logPiece("abcdefghijkl", outStream, 0, time.Time{}, "a1\na"), logPiece("zyxwvutsrqpo", outStream, 0, time.Time{}, "b1\n"),
		logPiece("abcdefghijkl", outStream, 4, time.Time{}, "2"), logOver("abcdefghijkl", &agboxv1.LogEnd{}))
	if want := "abcdef make all | a1\nzyxwvu make all | b1\nabcdef make all | a2\n"; stdout != want {
		t.Errorf("got %q, want %q", stdout, want)
	}
}

func TestDroppedBytesAreSaidAtTheEnd(t *testing.T) {
	_, stderr := printed(t, logsStyle{}, formatText, false, logOver("e", &agboxv1.LogEnd{Exec: &agboxv1.ExecStatus{StderrDroppedBytes: 7}}))
	if want := "agbox: 7 bytes of stderr were dropped, because the log was full.\n"; stderr != want {
		t.Errorf("got %q, want %q", stderr, want)
	}
}

func TestMissingOutputIsSaidWhereItIsMissing(t *testing.T) {
	gap := logPiece("abcdefghi", outStream, 5, time.Time{}, "")
	gap.Dropped = 7
	items := []client.SandboxLogItem{
		logPiece("abcdefghi", outStream, 0, time.Time{}, "a\nb\xe2"), gap, logPiece("abcdefghi", outStream, 5, time.Time{}, "c\n"),
		logOver("abcdefghi", &agboxv1.LogEnd{Exec: &agboxv1.ExecStatus{StdoutDroppedBytes: 7}}),
	}
	const sentence = "7 bytes of stdout were dropped here, because the disk or the log was full.\n"
	stdout, stderr := printed(t, logsStyle{}, formatText, false, items...)
	if want := "agbox: " + sentence; stdout != "a\nb\xe2c\n" || stderr != want {
		t.Errorf("got %q and %q, want %q", stdout, stderr, want)
	}
	stdout, stderr = printed(t, logsStyle{}, formatText, true, items...)
	if want := "agbox: abcdef make all: " + sentence; stdout != "abcdef make all | a\nabcdef make all | b\xe2\nabcdef make all | c\n" || stderr != want {
		t.Errorf("got %q and %q, want %q", stdout, stderr, want)
	}
	stdout, stderr = printed(t, logsStyle{}, formatJSON, false, items[:3]...)
	want := `{"exec_id":"abcdefghi","stream":"stdout","offset":0,"data":"a\nb"}` + "\n" +
		`{"exec_id":"abcdefghi","stream":"stdout","offset":3,"data_base64":"4g=="}` + "\n" +
		`{"exec_id":"abcdefghi","stream":"stdout","offset":5,"dropped_bytes":7}` + "\n" +
		`{"exec_id":"abcdefghi","stream":"stdout","offset":5,"data":"c\n"}` + "\n"
	if stdout != want || stderr != "" {
		t.Errorf("got %s and %q, want %s", stdout, stderr, want)
	}
}

// A part of a log does not have all gaps, and logs of earlier versions have none.
func TestTheSumOfMissingOutputIsSaidWhereNotAllOfItWasMet(t *testing.T) {
	gap := logPiece("e", outStream, 0, time.Time{}, "")
	gap.Dropped = 3
	_, stderr := printed(t, logsStyle{}, formatText, false, gap, logOver("e", &agboxv1.LogEnd{Exec: &agboxv1.ExecStatus{StdoutDroppedBytes: 7}}))
	if want := "agbox: 7 bytes of stdout were dropped, because the log was full.\n"; !strings.HasSuffix(stderr, want) {
		t.Errorf("got %q, want %q at the end", stderr, want)
	}
}

// However the output is cut, text stays text, and every byte is printed once.
func TestJSONPiecesAddUpWhereverCharactersAreCut(t *testing.T) {
	text := "aä€😀b"
	for size := 1; size <= len(text); size++ {
		var items []client.SandboxLogItem
		for at := 0; at < len(text); at += size {
			items = append(items, logPiece("e", outStream, at, time.Time{}, text[at:min(len(text), at+size)]))
		}
		stdout, _ := printed(t, logsStyle{}, formatJSON, false, append(items, logOver("e", &agboxv1.LogEnd{}))...)
		got := ""
		for line := range strings.Lines(stdout) {
			var piece struct {
				Offset int             `json:"offset"`
				Data   string          `json:"data"`
				Base64 string          `json:"data_base64"`
				End    json.RawMessage `json:"end"`
			}
			if err := json.Unmarshal([]byte(line), &piece); err != nil {
				t.Fatal(err)
			}
			if piece.End != nil {
				continue
			}
			if piece.Offset != len(got) || piece.Base64 != "" {
				t.Errorf("pieces of %d: %s", size, line)
			}
			got += piece.Data
		}
		if got != text {
			t.Errorf("pieces of %d add up to %q", size, got)
		}
	}
}

func TestJSONOfBytesThatAreNoTextIsBase64(t *testing.T) {
	for _, raw := range []string{"\xff\xfe", "a\xe2\x82", "\xf0\x9f"} {
		stdout, _ := printed(t, logsStyle{}, formatJSON, false, logPiece("e", errStream, 0, time.Time{}, raw), logOver("e", &agboxv1.LogEnd{}))
		var got []byte
		for line := range strings.Lines(stdout) {
			var piece struct {
				Data   string `json:"data"`
				Base64 string `json:"data_base64"`
			}
			if err := json.Unmarshal([]byte(line), &piece); err != nil {
				t.Fatal(err)
			}
			more, err := base64.StdEncoding.DecodeString(piece.Base64)
			if err != nil {
				t.Fatal(err)
			}
			got = append(append(got, piece.Data...), more...)
		}
		if string(got) != raw {
			t.Errorf("%q became %q (%s)", raw, got, stdout)
		}
	}
}

func TestAHalfCharacterIsNotLostWhenTheReadingBreaksOff(t *testing.T) {
	var out bytes.Buffer
	p := (&app{stdout: &out, width: func() int { return 0 }}).logPrinter(logsStyle{}, formatJSON)
	piece := logPiece("e", outStream, 0, time.Time{}, "a\xe2\x82")
	if err := p.print(piece.Exec, piece.LogItem); err != nil {
		t.Fatal(err)
	}
	_ = flushed(p, nil)
	want := `{"exec_id":"e","stream":"stdout","offset":0,"data":"a"}` + "\n" +
		`{"exec_id":"e","stream":"stdout","offset":1,"data_base64":"4oI="}` + "\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// A part of a log may start or end in the middle of a character.
func TestAHalfCharacterBeforeAGapIsWritten(t *testing.T) {
	stdout, _ := printed(t, logsStyle{}, formatJSON, false,
		logPiece("e", outStream, 0, time.Time{}, "a\xe2\x82"), logPiece("e", outStream, 9, time.Time{}, "b"))
	want := `{"exec_id":"e","stream":"stdout","offset":0,"data":"a"}` + "\n" +
		`{"exec_id":"e","stream":"stdout","offset":1,"data_base64":"4oI="}` + "\n" +
		`{"exec_id":"e","stream":"stdout","offset":9,"data":"b"}` + "\n"
	if stdout != want {
		t.Errorf("got %q, want %q", stdout, want)
	}
}

// Following a sandbox for days must not use memory for every command of it.
func TestNothingIsKeptOfACommandThatHasEnded(t *testing.T) {
	for _, f := range []format{formatText, formatJSON} {
		p := (&app{stdout: io.Discard, stderr: io.Discard, width: func() int { return 0 }}).logPrinter(logsStyle{}, f)
		for _, item := range []client.SandboxLogItem{logPiece("e", outStream, 0, time.Time{}, "a"), logOver("e", &agboxv1.LogEnd{})} {
			if err := p.print(item.Exec, item.LogItem); err != nil {
				t.Fatal(err)
			}
		}
		if len(p.execs) != 0 {
			t.Errorf("%v: %d commands are kept", f, len(p.execs))
		}
	}
}

func TestEscapeSequencesAreTakenOutHoweverTheyAreCut(t *testing.T) {
	for text, want := range map[string]string{
		"\x1b[1;31mred\x1b[0m\n":                    "red\n",
		"a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c": "abc",
		"\x1b(Bplain\x1bM\x1b7":                     "plain",
		"\x1b[?25l\x1b[2Kline\r\n\ttab":             "line\r\n\ttab",
		"ünï\x1bPdcs €\x1b\\ok":                     "ünïok",
		"broken \x1b[31":                            "broken ",
		"title without end \x1b]0;x\nnext":          "title without end \nnext",
	} {
		for size := 1; size <= len(text); size++ {
			var f ansiFilter
			got := ""
			for at := 0; at < len(text); at += size {
				got += string(f.filter([]byte(text[at:min(len(text), at+size)])))
			}
			if got != want {
				t.Errorf("%q in pieces of %d became %q", text, size, got)
			}
		}
	}
}

func TestTheWholeLogCanBeAskedForAsOfDocker(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	agbox(t, socket, "exec", "--name", "job", "demo", "say", "hello")
	if code, out, errs := agbox(t, socket, "logs", "--tail", "all", "job"); code != 0 || out != "hello\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
}

func TestTimesOfLogsAreDurationsDatesOrRFC3339(t *testing.T) {
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.Local)
	for value, want := range map[string]time.Time{
		"10m": now.Add(-10 * time.Minute), "2d": now.AddDate(0, 0, -2), "1d12h": now.Add(-36 * time.Hour), "0s": now, "": {},
		"2026-05-03": time.Date(2026, 5, 3, 0, 0, 0, 0, time.Local), "2026-05-03T04:05": time.Date(2026, 5, 3, 4, 5, 0, 0, time.Local),
		"2026-05-03T04:05:06.5+02:00": time.Date(2026, 5, 3, 2, 5, 6, 500_000_000, time.UTC),
	} {
		if got, err := timeFlag("since", value, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, %v; want %v", value, got, err, want)
		}
	}
	for _, bad := range []string{"soon", "-5m", "10", "2026-13-01", "d", "1d-2h"} {
		if _, err := timeFlag("since", bad, now); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func (d *scripted) ServiceLogs(in *agboxv1.ServiceLogsRequest, out grpc.ServerStreamingServer[agboxv1.ServiceLogsResponse]) error {
	return out.Send(&agboxv1.ServiceLogsResponse{Data: []byte(in.GetService() + " of " + in.GetSandboxId() + "\n")})
}

func TestASandboxNeedsNoFlagForTheLogsOfItsService(t *testing.T) {
	_, socket := serveScripted(t)
	_, id, _ := agbox(t, socket, "create", "demo", "--image", "good")
	for _, args := range [][]string{{"logs", "demo", "--service", "db"}, {"logs", "--sandbox", "demo", "--service", "db"}} {
		if code, out, errs := agbox(t, socket, args...); code != 0 || out != "db of "+id {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
	if code, _, errs := agbox(t, socket, "logs", "other", "--service", "db"); code != 3 || !strings.Contains(errs, "no sandbox other") {
		t.Errorf("no sandbox: code %d, stderr %q", code, errs)
	}
}

func TestTheLastLinesOfTheDaemonsLogAreShown(t *testing.T) {
	long := strings.Repeat("a line of the log of the daemon\n", 5000)
	for _, test := range []struct {
		content, lines, want string
	}{
		{"one\ntwo\nthree\n", "all", "one\ntwo\nthree\n"},
		{"one\ntwo\nthree\n", "2", "two\nthree\n"},
		{"one\ntwo\nthree", "2", "two\nthree"},
		{"one\ntwo\nthree\n", "9", "one\ntwo\nthree\n"},
		{"one\ntwo\n", "0", ""},
		{"one\ntwo", "0", ""},
		{"\n\n", "1", "\n"},
		{"", "1", ""},
		{long, "4000", long[len(long)/5:]},
	} {
		home := t.TempDir()
		t.Setenv("AGBOX_HOME", home)
		path := filepath.Join(home, "data", "agboxd.log")
		if code, _, errs := agbox(t, "", "daemon", "logs"); code != codeNotFound || !strings.Contains(errs, "There is no "+path) || !strings.Contains(errs, "journalctl -u agboxd") {
			t.Fatalf("without a log: code %d, %q", code, errs)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, errs := agbox(t, "", "daemon", "logs", "-n", test.lines); code != 0 || out != test.want || errs != "" {
			t.Errorf("-n %s of %.20q: code %d, %.40q, %q", test.lines, test.content, code, out, errs)
		}
	}
}

func TestTheDaemonsLogIsFollowedIntoTheNextFile(t *testing.T) {
	t.Run("watched", func(t *testing.T) { followIntoTheNextFile(t, followFile) })
	t.Run("polled", func(t *testing.T) {
		followIntoTheNextFile(t, func(path string) *fileFollower {
			f := &fileFollower{path: path}
			f.poll()
			return f
		})
	})
}

func followIntoTheNextFile(t *testing.T, begin func(path string) *fileFollower) {
	path := filepath.Join(t.TempDir(), "agboxd.log")
	add := func(text string) {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err == nil {
			_, err = file.WriteString(text)
		}
		if err != nil || file.Close() != nil {
			t.Fatal(err)
		}
	}
	want := ""
	lines := make(chan string, 10)
	out := &syncBuffer{}
	out.wrote = func() { lines <- out.String() }
	say := func(text string) {
		add(text)
		for want += text; <-lines != want; {
		}
	}
	add("too early\n")
	add("before\n")
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	last := uint64(1)
	changes := begin(path)
	defer changes.close()
	go func() { ended <- showFile(ctx, out, path, &last, changes) }()
	for want = "before\n"; <-lines != want; {
	}
	for i := range 2 {
		say(fmt.Sprintf("line %d\n", i))
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		say(fmt.Sprintf("in file %d\n", i))
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The database of the daemon is in the folder of its log, and written often.
func TestOnlyChangesOfTheFileWakeItsFollower(t *testing.T) {
	events, errs := make(chan fsnotify.Event, 9), make(chan error, 1)
	f := &fileFollower{path: "/data/agboxd.log", events: events, lost: errs}
	defer f.close()
	next := func(what string, happened ...fsnotify.Event) {
		t.Helper()
		for _, e := range happened {
			events <- e
		}
		if err := f.next(t.Context()); err != nil || len(events) != 0 {
			t.Errorf("%s: %v, %d events are left", what, err, len(events))
		}
	}
	next("it was written", fsnotify.Event{Name: "/data/ids.db", Op: fsnotify.Write}, fsnotify.Event{Name: "/data/agboxd.log.1", Op: fsnotify.Create},
		fsnotify.Event{Name: "/data/agboxd.log", Op: fsnotify.Chmod}, fsnotify.Event{Name: "/data/agboxd.log", Op: fsnotify.Write})
	next("it was made", fsnotify.Event{Name: "/data/agboxd.log", Op: fsnotify.Rename}, fsnotify.Event{Name: "/data/agboxd.log", Op: fsnotify.Create})
	errs <- fsnotify.ErrEventOverflow
	next("events were lost")
	next("the folder was removed", fsnotify.Event{Name: "/data", Op: fsnotify.Remove})
	if f.tick == nil {
		t.Error("without its folder, the file is not polled")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.tick = nil
	if err := f.next(ctx); err == nil {
		t.Error("it goes on after the end")
	}
}
