package main

import (
	"bytes"
	"fmt"
	"iter"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// hookLine is the longest line of a hook's output that is shown whole, in bytes.
const hookLine = 4096

// hookTail is how many last lines are shown of a hook that failed and was not followed.
const hookTail = uint64(20)

// logReader reads the output of an exec, as client.FollowLogs does.
type logReader func(exec string, o client.LogOptions) iter.Seq2[client.LogItem, error]

// hookOutput shows the output of a hook, line by line, on stderr. Escape sequences are
// removed and control characters escaped: it is shown between messages of agbox.
type hookOutput struct {
	progress *progress
	// streams are stdout and stderr, each with the line that is not complete yet.
	streams [2]struct {
		ansi ansiFilter
		line []byte
	}
}

// follow shows the output of the exec until it has ended or cannot be read any more. The
// wait for the sandbox reports errors.
func (h *hookOutput) follow(items iter.Seq2[client.LogItem, error]) {
	for item, err := range items {
		if err != nil || item.End != nil {
			break
		}
		s := &h.streams[0]
		if item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR {
			s = &h.streams[1]
		}
		s.line = append(s.line, s.ansi.filter(item.Data)...)
		for {
			i := bytes.IndexByte(s.line, '\n')
			if i < 0 && len(s.line) < hookLine {
				break
			}
			if i < 0 {
				i = hookLine
			}
			h.print(s.line[:i])
			s.line = bytes.TrimPrefix(s.line[i:], []byte("\n"))
		}
	}
	for _, s := range h.streams {
		if len(s.line) > 0 {
			h.print(s.line)
		}
	}
}

// print shows a line as it stands on a terminal at last: without what a carriage return
// has overwritten.
func (h *hookOutput) print(line []byte) {
	line = bytes.TrimSuffix(line, []byte("\r"))
	line = line[bytes.LastIndexByte(line, '\r')+1:]
	h.progress.clear()
	fmt.Fprintf(h.progress.app.stderr, "  | %s\n", printableLines(string(line)))
}

// hookStarted says which hook runs. It follows the output of post_create, which is over
// before the sandbox is ready. Other hooks may go on after that.
func (p *progress) hookStarted(exec string, hook *agboxv1.HookRef) {
	list := "post_create"
	if hook.GetService() != "" {
		list = "post_start_on_primary of service " + printable(hook.GetService())
	}
	id := printable(exec)
	p.put(id, fmt.Sprintf("running command %d of %s: agbox logs -f %s", hook.GetIndex()+1, list, id), true)
	if hook.GetService() == "" && p.logs != nil {
		h := hookOutput{progress: p}
		h.follow(p.logs(exec, client.LogOptions{Follow: true}))
	}
}

// hookEnded shows the end of the output of a hook that failed and was not followed.
func (p *progress) hookEnded(d *agboxv1.ExecEventDetails) {
	if d.GetHook().GetService() == "" || d.GetExitCode() == 0 && d.GetErrorCode() == "" || p.logs == nil {
		return
	}
	p.clear()
	p.app.say("%s failed. The end of its output:", hookWord(d.GetHook()))
	tail := hookTail
	h := hookOutput{progress: p}
	h.follow(p.logs(d.GetExecId(), client.LogOptions{TailLines: &tail}))
}
