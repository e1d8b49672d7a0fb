package server

// Lengths, types and flags of HTTP/2 (RFC 9113, sections 3.4, 4.1 and 6.7), in bytes.
const (
	prefaceLength     = 24
	frameHeaderLength = 9
	pingLength        = 8
	pingFrame         = 6
	ackFlag           = 1
)

// goAwayPing is the data of the ping that grpc-go sends behind its first GOAWAY frame. A
// client that acknowledges it has read that frame, and sends no further call over the
// connection.
var goAwayPing = [pingLength]byte{1, 6, 1, 8, 0, 3, 3, 9}

// frames observes what an HTTP/2 client sends. grpc does not report the acknowledgement
// of its GOAWAY frame.
type frames struct {
	// skip is the number of bytes before the next header.
	skip int
	// head has the first bytes of a frame: its header, and the data of a ping.
	head [frameHeaderLength + pingLength]byte
	have int
	// headers counts the headers.
	headers int
}

func newFrames() frames { return frames{skip: prefaceLength} }

// greeted reports whether the client has sent the preface and its first frame.
func (f *frames) greeted() bool { return f.headers > 1 || f.headers == 1 && f.skip == 0 }

// read takes the next bytes and reports whether they end an acknowledgement of GOAWAY.
func (f *frames) read(p []byte) (acknowledged bool) {
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(p))
			f.skip -= n
			p = p[n:]
			continue
		}
		want := frameHeaderLength
		if f.have >= frameHeaderLength {
			want = len(f.head)
		}
		n := copy(f.head[f.have:want], p)
		f.have += n
		p = p[n:]
		switch {
		case f.have < want:
		case want == frameHeaderLength:
			f.begin()
		default:
			acknowledged = acknowledged || f.head[4]&ackFlag != 0 && [pingLength]byte(f.head[frameHeaderLength:]) == goAwayPing
			f.have = 0
		}
	}
	return acknowledged
}

// begin handles a complete header. The data of a ping is read, that of other frames
// skipped.
func (f *frames) begin() {
	f.headers++
	length := int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
	if f.head[3] == pingFrame && length == pingLength {
		return
	}
	f.skip, f.have = length, 0
}
