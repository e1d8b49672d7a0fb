package agentsocket

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
)

const (
	// maxResults bounds what the results of an incarnation have in their file together, in bytes.
	maxResults = 16 << 20
	// maxResultBody bounds a result that is sent, in bytes. Of one beyond journal.MaxResultFile only the
	// beginning is kept.
	maxResultBody = 64 << 20
	// resultPiece is how much of a result is in memory.
	resultPiece = 32 << 10
)

// reserve returns the file and the place for a result of a size; ok is false if there is no room.
func (r *results) reserve(in *incarnation, size int64) (file *logs.Results, at int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut || r.next+size > maxResults {
		return nil, 0, false
	}
	if r.file == nil {
		cfg := &in.server.cfg
		var err error
		cfg.Disk(func() { r.file, err = cfg.Logs.CreateResults(in.execID, cfg.Quota, cfg.Owner) })
		if err != nil {
			r.shut = true
			return nil, 0, false
		}
	}
	at = r.next
	r.next += size
	return r.file, at, true
}

func (r *results) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut = true; r.file != nil {
		_ = r.file.Close()
	}
}

// receive executes the first part of the request for the end of a call whose result follows on the
// connection: it sets what the request has of that. It reads the result in any case, except if that
// is too large or does not come: then the connection must end. A result that cannot be kept is no
// error, as the call has ended.
func (s *Server) receive(c *conn, from *bufio.Reader, req *request) (in *incarnation, err error) {
	if req.Bytes > maxResultBody {
		return nil, &refusal{codeLarge, fmt.Sprintf("A result has at most %d bytes: send the beginning, and how many bytes there are as result_bytes.", maxResultBody)}
	}
	body := &state{s, c, from}
	defer func() {
		if no := new(refusal); err != nil && c.torn && !errors.As(err, &no) {
			err = short(req.Bytes)
		}
		err = errors.Join(err, s.allow(c, 0))
	}()
	if in, err = s.identify(c, req.Token); err != nil {
		return nil, errors.Join(err, discard(body, req.Bytes))
	}
	if req.Call != "end" || req.Result != nil || req.ResultBase64 != nil {
		return in, errors.Join(&refusal{codeBad, "Only the end of a call has bytes after its line: its result, which is nowhere else then."}, discard(body, req.Bytes))
	}
	head := make([]byte, min(req.Bytes, journal.MaxResult))
	if _, err := io.ReadFull(body, head); err != nil {
		return in, err
	}
	whole := req.Bytes >= req.ResultBytes
	req.ResultBase64, req.ResultBytes = &head, max(req.ResultBytes, req.Bytes)
	left := req.Bytes - uint64(len(head))
	if left == 0 {
		return in, nil
	}
	file, at, ok := (*logs.Results)(nil), int64(0), false
	if whole && req.Bytes <= journal.MaxResultFile {
		file, at, ok = in.results.reserve(in, int64(req.Bytes))
	}
	if !ok {
		return in, discard(body, left)
	}
	req.file, err = in.keep(file, at, head, body, left)
	return in, err
}

// keep writes a result into the file: its head, and what is left of it. It returns nil if that
// fails. The error is that of the connection.
func (in *incarnation) keep(file *logs.Results, at int64, head []byte, body io.Reader, left uint64) (*journal.ResultFile, error) {
	sum, place := crc32.NewIEEE(), at
	write := func(p []byte) (err error) {
		_, _ = sum.Write(p)
		in.server.cfg.Disk(func() { _, err = file.WriteAt(p, place) })
		place += int64(len(p))
		return err
	}
	failed := write(head)
	piece := make([]byte, resultPiece)
	for left > 0 && failed == nil {
		n := min(left, resultPiece)
		if _, err := io.ReadFull(body, piece[:n]); err != nil {
			return nil, err
		}
		left -= n
		failed = write(piece[:n])
	}
	if failed != nil {
		return nil, discard(body, left)
	}
	return &journal.ResultFile{At: uint64(at), CRC32: sum.Sum32()}, nil
}
