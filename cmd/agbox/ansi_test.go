package main

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/agbox/agbox/client"
)

// answered are sequences that a terminal answers, each complete.
var answered = strings.Fields(strings.NewReplacer("ESC", "\x1b", "BEL", "\a", "ST", "\x1b\\").Replace(`
	ESC[c ESC[0c ESC[>c ESC[>0c ESC[=c ESC[=0c ESCZ ESC[5n ESC[6n ESC[?6n ESC[?15n ESC[?996n ESC[4$p ESC[?2026$p ESC[?1;2$p
	ESC[>q ESC[>0q ESCP$qmST ESCP1$qrST ESCP+q544eST ESCP+QfontST ESC]4;1;?BEL ESC]4;0;?;255;?ST ESC]10;?ST ESC]11;?BEL ESC]12;?ST ESC]19;?ST
	ESC]52;c;?ST ESC]52;;?BEL ESC[11t ESC[13t ESC[13;2t ESC[14t ESC[14;2t ESC[15t ESC[16t ESC[18t ESC[19t ESC[20t ESC[021t
	ESC[?u ESC[?4m ESC[?1;1;0S ESC[x ESC[1x ESC[1;1;1;1;1;1*y ESC[1$w ESC["v ESC[#S ESC[#R ESC[#|
	ESC]60ST ESC]60BEL ESC]61;allowColorOpsST ESC]1337;ReportCellSizeBEL ESC]3;?WM_NAMEST ESC]21;foreground=?ST
	ESC_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAAST ESCPtmux;ESCESC[cST ESCPtmux;ESCESC]11;?ESCESC\ST`))

// harmless are texts and sequences that no terminal answers.
var harmless = append(strings.Fields(strings.NewReplacer("ESC", "\x1b", "BEL", "\a", "ST", "\x1b\\").Replace(`
	ESC[1;31m ESC[38:2::1:2:3m ESC[H ESC[2J ESC[?25l ESC[?1049h ESC[?2004h ESC[?0c ESC[>4;2m ESC[>4n ESC[>1u ESC[<u ESC[u ESC[s
	ESC[4h ESC[2ESC[1m ESC[8;24;80t ESC[22;0t ESC[23;0t ESC[!p ESC["p ESC[1SPESC[m ESC[4$x ESC[2*x ESC7 ESC8 ESCc ESC(B ESC= ESC>
	ESC]0;what?BEL ESC]2;cST ESC]8;;http://x/?q=1ST ESC]4;1;#ffffffST ESC]10;redST ESC]52;c;aGVsbG8=ST ESC]133;AST ESC]7;file://h/pBEL
	ESCPqpictureST ESCP0;1|17/abST ESC^privateST héllo [c 6n ; ? 日本語`)), " ", "\n", "\r\n", "\t", "\a", "$ ls")

func TestHistoryAsksTheTerminalNothing(t *testing.T) {
	for _, q := range answered {
		if f := new(queryFilter); string(f.filter([]byte("a"+q+"b"))) != "ab" || len(f.held) > 0 {
			t.Errorf("%q leaves %q", q, new(queryFilter).filter([]byte("a"+q+"b")))
		}
	}
	for _, s := range harmless {
		if got := string(new(queryFilter).filter([]byte("a" + s + "b"))); got != "a"+s+"b" {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := new(queryFilter).filter([]byte("a\x05b\x1b[3\x05\r1mc")); string(got) != "ab\r\x1b[31mc" {
		t.Errorf("ENQ leaves %q", got)
	}
}

// TestHistoryHasNoC1Characters: in UTF-8, xterm takes them for the beginnings of sequences.
func TestHistoryHasNoC1Characters(t *testing.T) {
	for in, want := range map[string]string{
		"a\u009b6nb":                    "a6nb",
		"\u009d11;?\u009c\u009a\u0080x": "11;?x",
		"\u0090$qm\x1b\\":               "$qm\x1b\\",
		"\x1b[\u009bcd":                 "d", // the rest of one sequence
		"\x1b]0;title\u009cb\u009b6n":   "\x1b]0;title\x1b\\b6n",
		"\x1b]11;?\u009cb":              "b",
		"\x1b]0;t\u009b6n\ab":           "\x1b]0;t6n\ab",
		"\x1b\u009b6n":                  "\x1b6n",
		"£\u00a0\u00bf\xc2\u009b\xc2z":  "£\u00a0\u00bf\xc2\xc2z",
	} {
		for size := range len(in) {
			f, got := new(queryFilter), ""
			for rest := in; rest != ""; rest = rest[min(len(rest), size+1):] {
				got += string(f.filter([]byte(rest[:min(len(rest), size+1)])))
			}
			if got != want || len(f.held) > 0 {
				t.Errorf("%q in pieces of %d leaves %q and %q, want %q", in, size+1, got, f.held, want)
			}
		}
	}
	// What is complete only later passes.
	for _, in := range []string{"a\u009b6n", "\x1b]0;t\u009b"} {
		end := strings.IndexByte(in, 0xc2) + 1
		p := &past{end: uint64(end)}
		got := string(p.shown(client.LogItem{Data: []byte(in[:end])})) + string(p.shown(client.LogItem{Offset: uint64(end), Data: []byte(in[end:])}))
		if got != in {
			t.Errorf("%q became %q", in, got)
		}
	}
}

func TestHistoryAsksNothingHoweverItIsCut(t *testing.T) {
	picture, clipboard := "\x1bPq"+strings.Repeat("#1~~", longestQuery)+"\x1b\\", "\x1b]52;c;"+strings.Repeat("QUJD", longestQuery)+"\a"
	kitty := "\x1b_Gi=1;" + strings.Repeat("QUJD", longestQuery) + "\x1b\\"
	tmux := "\x1bPtmux;" + strings.Repeat("\x1b\x1b[c", longestQuery) + "\x1b\\"
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var in, want strings.Builder
		for range 1 + rnd.IntN(40) {
			switch n := rnd.IntN(42); {
			case n == 0:
				in.WriteString(kitty)
			case n == 1:
				in.WriteString(tmux)
			case n == 2:
				in.WriteString(picture)
				want.WriteString(picture)
			case n == 3:
				in.WriteString(clipboard)
				want.WriteString(clipboard)
			case n%2 == 0:
				in.WriteString(answered[rnd.IntN(len(answered))])
			default:
				s := harmless[rnd.IntN(len(harmless))]
				in.WriteString(s)
				want.WriteString(s)
			}
		}
		f, rest := new(queryFilter), []byte(in.String())
		var got strings.Builder
		for len(rest) > 0 {
			n := 1 + rnd.IntN(min(len(rest), 1+rnd.IntN(2*longestQuery)))
			got.Write(f.filter(rest[:n]))
			rest = rest[n:]
		}
		if got.String() != want.String() || len(f.held) > 0 {
			t.Fatalf("seed %d: %.300q became %.300q, want %.300q", seed, in.String(), got.String(), want.String())
		}
	}
}

// TestWhatComesAfterTheHistoryPassesAsItIs cuts output everywhere into history and what
// comes later, and that into pieces: a sequence is asked when its last byte comes.
func TestWhatComesAfterTheHistoryPassesAsItIs(t *testing.T) {
	const output = "$ \x1b[c\x1b[1mold\x1b]11;?\a \x05\x1bP+q544e\x1b\\\r\n$ "
	whole := new(queryFilter)
	for end := range len(output) + 1 {
		for size := 1; size <= len(output); size++ {
			want := string(new(queryFilter).filter([]byte(output[:end])))
			f := new(queryFilter)
			_ = f.filter([]byte(output[:end]))
			if end < len(output) {
				want += string(f.held) + output[end:]
			}
			p, got := &past{end: uint64(end)}, ""
			for at := 0; at < len(output); at += size {
				got += string(p.shown(client.LogItem{Offset: uint64(at), Data: []byte(output[at:min(at+size, len(output))])}))
			}
			if got != want {
				t.Fatalf("with a history of %d bytes in pieces of %d: %q, want %q", end, size, got, want)
			}
		}
	}
	if got := string(whole.filter([]byte(output))); got != "$ \x1b[1mold \r\n$ " {
		t.Errorf("the history is shown as %q", got)
	}
}

func TestAPictureThatIsCutByTheEndOfTheHistoryIsNotShownAsText(t *testing.T) {
	picture := "\x1b_Gi=1;" + strings.Repeat("QUJD", longestQuery) + "\x1b\\"
	p := &past{end: 2 * longestQuery}
	got := string(p.shown(client.LogItem{Data: []byte(picture + "\x1b[c$ ")}))
	if got != "\x1b[c$ " {
		t.Errorf("it leaves %.100q", got)
	}
}
