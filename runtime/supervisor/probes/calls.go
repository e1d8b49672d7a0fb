// This file decides how long a call may take that an agent's program makes: to the
// network, to a model or to a tool. A call is stuck if nothing progresses, however long it
// takes.

package probes

import (
	"bufio"
	"context"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// CallVariable is in the environment of what "agbox-agent tool" runs. Its value is the mark of
// the call.
const CallVariable = "AGBOX_CALL"

// Why a call is to be aborted.
const (
	ConnectTimeout  = "CONNECT_TIMEOUT"
	ResponseTimeout = "RESPONSE_TIMEOUT"
	TotalTimeout    = "TOTAL_TIMEOUT"
	ChunkTimeout    = "CHUNK_TIMEOUT"
	ToolTimeout     = "TOOL_TIMEOUT"
	// Shutdown means that the incarnation is drained. It is no failure of the call.
	Shutdown = "SHUTDOWN"
)

// Limits are how long calls may take. 0 means no limit.
type Limits struct {
	// Connect is for the network and for models, until there is a connection.
	Connect time.Duration
	// Response is for the whole of a call to the network.
	Response time.Duration
	// LLMTotal is for the whole of a call to a model, LLMChunk for the time between two
	// parts of its answer. It begins with the first part: before that a model may think.
	LLMTotal, LLMChunk time.Duration
	// Tool is for tools that Tools does not name.
	Tool  time.Duration
	Tools map[string]time.Duration
}

// Call is a call that has begun.
type Call struct {
	// Kind is as in a journal.
	Kind, Name string
	Begun      time.Time
	// Connected means that there is a connection. Chunk is when the newest part of the
	// answer came; it is zero before the first.
	Connected bool
	Chunk     time.Time
}

// Progress returns the call after its program has reported progress: a connection, or a
// part of the answer, which implies one.
func (c Call) Progress(now time.Time, chunk bool) Call {
	c.Connected = true
	if chunk {
		c.Chunk = now
	}
	return c
}

// Deadline returns when the call is to be aborted if nothing more is reported, and why. at
// is zero if there is no limit.
func (c Call) Deadline(l Limits) (at time.Time, reason string) {
	limit := func(from time.Time, after time.Duration, why string) {
		if after <= 0 {
			return
		}
		if end := from.Add(after); at.IsZero() || end.Before(at) {
			at, reason = end, why
		}
	}
	if c.Kind != journal.Tool && !c.Connected {
		limit(c.Begun, l.Connect, ConnectTimeout)
	}
	switch c.Kind {
	case journal.Network:
		limit(c.Begun, l.Response, ResponseTimeout)
	case journal.LLM:
		limit(c.Begun, l.LLMTotal, TotalTimeout)
		if !c.Chunk.IsZero() {
			limit(c.Chunk, l.LLMChunk, ChunkTimeout)
		}
	case journal.Tool:
		after, named := l.Tools[c.Name]
		if !named {
			after = l.Tool
		}
		limit(c.Begun, after, ToolTimeout)
	}
	return at, reason
}

const (
	// maxStatusLine bounds the first line of an answer.
	maxStatusLine = 256
	// maxBody is how much of an answer is read, so that its server can send it, and
	// bodyTime how long that may take.
	maxBody  = 8 << 10
	bodyTime = 250 * time.Millisecond
)

// HTTP asks a server on 127.0.0.1 for a path. Status 200 to 399 is success. It speaks only
// what a health check needs: net/http would double the memory of a supervisor.
func HTTP(ctx context.Context, port uint16, path string) Result {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
	c, err := new(net.Dialer).DialContext(ctx, "tcp4", address)
	if err != nil {
		return Failed
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.0\r\nHost: "+address+"\r\nUser-Agent: agbox\r\nConnection: close\r\n\r\n"); err != nil {
		return Failed
	}
	in := bufio.NewReaderSize(c, maxStatusLine)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return Failed
	}
	code := statusOf(string(line))
	if c.SetReadDeadline(time.Now().Add(bodyTime)) == nil {
		_, _ = io.CopyN(io.Discard, in, maxBody)
	}
	if code >= 200 && code < 400 {
		return Passed
	}
	return Failed
}

// statusOf returns the status of a status line, or 0 if it is none.
func statusOf(line string) int {
	const version = "HTTP/1.x " // the x is any digit
	if len(line) <= len(version)+3 || line[:7] != version[:7] || line[8] != ' ' {
		return 0
	}
	if rest := line[len(version)+3:]; rest[0] != ' ' && rest[0] != '\r' && rest[0] != '\n' {
		return 0
	}
	code, err := strconv.ParseUint(line[len(version):len(version)+3], 10, 16)
	if err != nil {
		return 0
	}
	return int(code)
}
