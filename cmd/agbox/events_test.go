package main

import (
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// hookEvents is a progress on a terminal of the given width that has shown the events of a
// hook whose output is the pieces: those that begin with "!" on stderr, "EOF" for an error.
func hookEvents(t *testing.T, width int, hook *agboxv1.HookRef, exit int32, pieces ...string) (shown string, asked client.LogOptions) {
	c := newCLI(t, "")
	c.width = func() int { return width }
	p := &progress{shownLine: shownLine{app: c.app}, logs: func(exec string, o client.LogOptions) iter.Seq2[client.LogItem, error] {
		asked = o
		return func(yield func(client.LogItem, error) bool) {
			for _, piece := range pieces {
				item := client.LogItem{Stream: agboxv1.LogStream_LOG_STREAM_STDOUT, Data: []byte(strings.TrimPrefix(piece, "!"))}
				if strings.HasPrefix(piece, "!") {
					item.Stream = agboxv1.LogStream_LOG_STREAM_STDERR
				}
				if piece == "EOF" {
					yield(client.LogItem{}, errors.New("gone"))
					return
				}
				if !yield(item, nil) {
					return
				}
			}
			yield(client.LogItem{End: &agboxv1.LogEnd{}}, nil)
		}
	}}
	details := &agboxv1.ExecEventDetails{ExecId: "e1", Hook: hook, ExitCode: exit}
	for _, typ := range []agboxv1.EventType{agboxv1.EventType_EXEC_STARTED, agboxv1.EventType_EXEC_FINISHED} {
		p.show(&agboxv1.SandboxEvent{EventType: typ, Details: &agboxv1.SandboxEvent_Exec{Exec: details}})
	}
	return c.errs.String(), asked
}

func TestTheOutputOfPostCreateIsShown(t *testing.T) {
	const head = "agbox: running command 1 of post_create: agbox logs -f e1\n"
	for name, test := range map[string]struct {
		pieces []string
		want   string
	}{
		"lines":          {[]string{"one\ntw", "o\n", "!bad\n"}, "  | one\n  | two\n  | bad\n"},
		"mixed streams":  {[]string{"on", "!bad\n", "e\n"}, "  | bad\n  | one\n"},
		"no last break":  {[]string{"one"}, "  | one\n"},
		"progress bars":  {[]string{"10%\r20%\r100%\r\n"}, "  | 100%\n"},
		"escapes":        {[]string{"\x1b[3", "1mred\x1b[0m \x07!\n"}, "  | red \\a!\n"},
		"an empty line":  {[]string{"\n"}, "  | \n"},
		"a long line":    {[]string{strings.Repeat("x", hookLine+2)}, "  | " + strings.Repeat("x", hookLine) + "\n  | xx\n"},
		"a lost log":     {[]string{"one\n", "EOF"}, "  | one\n"},
		"nothing at all": {nil, ""},
	} {
		shown, asked := hookEvents(t, 0, &agboxv1.HookRef{}, 0, test.pieces...)
		if shown != head+test.want || !asked.Follow {
			t.Errorf("%s: %q, want %q", name, shown, head+test.want)
		}
	}
	// On a terminal a line of output takes the place of the line of progress.
	shown, _ := hookEvents(t, 20, &agboxv1.HookRef{}, 0, "one\n", "two\n")
	if want := "\r\x1b[Krunning command 1 …\r\x1b[K  | one\n  | two\n"; shown != want {
		t.Errorf("on a terminal: %q, want %q", shown, want)
	}
}

func TestTheOutputOfAHookOfAServiceIsShownIfItFails(t *testing.T) {
	shown, asked := hookEvents(t, 0, &agboxv1.HookRef{Service: "db", Index: 1}, 3, "no table\n")
	want := "agbox: running command 2 of post_start_on_primary of service db: agbox logs -f e1\n" +
		"agbox: post_start_on_primary 2 of db failed. The end of its output:\n  | no table\n"
	if shown != want || asked.Follow || asked.TailLines == nil || *asked.TailLines != hookTail {
		t.Errorf("%q, asked for %+v", shown, asked)
	}
	if shown, _ := hookEvents(t, 0, &agboxv1.HookRef{Service: "db"}, 0, "fine\n"); strings.Contains(shown, "fine") {
		t.Errorf("of one that did not fail: %q", shown)
	}
}
