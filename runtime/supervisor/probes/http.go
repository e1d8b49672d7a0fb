package probes

import (
	"bufio"
	"context"
	"io"
	"net"
	"strconv"
	"time"
)

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
