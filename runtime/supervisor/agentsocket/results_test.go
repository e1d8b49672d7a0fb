package agentsocket

import (
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/agents/journal"
)

// gave reports a call whose result follows its end. The line end after it belongs to it.
func (p *peer) gave(a *Access, id, fields, result string) reply {
	p.t.Helper()
	if r := p.ask(`{"op":"call","call":"begin","kind":"tool","name":"x","invocation":%q,"token":%q}`, id, a.token); !r.OK {
		p.t.Fatal(r)
	}
	return p.ask(`{"op":"call","call":"end","invocation":%q,"token":%q,"bytes":%d%s}`+"\n%s", id, a.token, len(result)+1, fields, result)
}

// TestALongResultIsInAFile as a whole, if there is room, and its beginning is in the journal anyway.
func TestALongResultIsInAFile(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	short, long := strings.Repeat("s", journal.MaxResult-1), strings.Repeat("long", 50_000)
	huge, most := strings.Repeat("h", journal.MaxResultFile), strings.Repeat("m", journal.MaxResultFile-1)
	for _, call := range []struct{ id, fields, result string }{
		{"short", "", short}, {"long", "", long}, {"other", "", "other" + long}, {"part", `,"result_bytes":1000000`, long}, {"huge", "", huge}, {"most", "", most}, {"full", "", most},
	} {
		if r := p.gave(a, call.id, call.fields, call.result); !r.OK {
			t.Fatalf("%s: %+v", call.id, r)
		}
	}
	if r := p.gave(a, "twice", `,"result":"x"`, "y"); r.OK || r.Error.Code != codeBad {
		t.Errorf("with two results: %+v", r)
	}
	if r := p.ask(`{"op":"hello","token":%q}`, a.token); !r.OK {
		t.Errorf("the request after it: %+v", r)
	}
	file, err := dir.OpenJournal("e")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	results, err := dir.OpenResults("e")
	if err != nil {
		t.Fatal(err)
	}
	defer results.Close()
	var got []string
	if _, err := journal.Beginning().Read(file, func(r journal.Row, _ journal.Summary) {
		if r.Phase != journal.End {
			return
		}
		in := "beginning"
		if f := r.ResultFile; f != nil {
			all, err := io.ReadAll(io.NewSectionReader(results, int64(f.At), int64(*r.ResultBytes)))
			if err != nil || uint64(len(all)) != *r.ResultBytes || crc32.ChecksumIEEE(all) != f.CRC32 || !strings.HasPrefix(string(all), string(r.Result)) || !slices.Contains([]string{long, "other" + long, most}, strings.TrimSuffix(string(all), "\n")) {
				t.Errorf("%s has another result in the file, of %d bytes, %v", r.Invocation, len(all), err)
			}
			in = "file"
		}
		got = append(got, fmt.Sprint(r.Invocation, " ", len(r.Result), " ", *r.ResultBytes, " ", in))
	}); err != nil {
		t.Fatal(err)
	}
	const head = journal.MaxResult
	want := []string{
		fmt.Sprint("short ", head, " ", head, " beginning"), fmt.Sprint("long ", head, " 200001 file"), fmt.Sprint("other ", head, " 200006 file"), fmt.Sprint("part ", head, " 1000000 beginning"),
		fmt.Sprint("huge ", head, " ", journal.MaxResultFile+1, " beginning"), fmt.Sprint("most ", head, " ", journal.MaxResultFile, " file"), fmt.Sprint("full ", head, " ", journal.MaxResultFile, " beginning"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("the journal has %q; want %q", got, want)
	}
}

// TestAResultThatIsTooLargeEndsItsConnection, as it is not read.
func TestAResultThatIsTooLargeEndsItsConnection(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	if r := p.ask(`{"op":"call","call":"end","invocation":"x","token":%q,"bytes":%d}`, a.token, maxResultBody+1); r.OK || r.Error.Code != codeLarge {
		t.Errorf("%+v", r)
	}
}

// A result that does not come whole is a mistake of the program.
func TestAResultThatIsCutShortIsABadRequest(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := owned(t, a, 1)[0]
	p.send(`{"op":"call","token":%q,"call":"end","invocation":"1","bytes":4}`, a.token)
	if err := p.Conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if r := p.answer(); r.Error.Code != codeBad || !strings.Contains(r.Error.Message, "Fewer bytes followed the line than the 4 it says") {
		t.Errorf("the answer: %+v", r)
	}
	p.ended()
}
