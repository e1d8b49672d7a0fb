package logs

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	token    = "sk-canary-4fQx81Zr"
	password = "sk-canar" // also the beginning of the token
	other    = "rZr-0123456789abcdef0123456789abcdef0123456789"
)

func TestALateTimerLeavesWhatIsNewerHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, path := openDir(t)
		late := make(chan struct{})
		w := redacting(t, d, "e", token)
		w.gate = func(fn func()) { <-late; fn() }
		w.Write(Stdout, time.Now(), []byte("a "+token[:3]))
		time.Sleep(holdTime)
		synctest.Wait() // the timer has run, and waits for the disk
		w.Write(Stdout, time.Now(), []byte(token[3:]+token[:5]))
		close(late)
		synctest.Wait()
		w.Write(Stdout, time.Now(), []byte(token[5:]+"\n"))
		if got := string(readFile(t, path, StdoutName("e"))); got != "a "+Mask+Mask+"\n" {
			t.Errorf("the log has %q", got)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}

// masked is what the log should have: the oracle, which knows nothing of Redactor.
func masked(text string, values ...string) string {
	slices.SortFunc(values, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var pairs []string
	for _, v := range values {
		pairs = append(pairs, v, Mask)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

func redacting(t fataler, d *Dir, id string, values ...string) *Writer {
	t.Helper()
	opt := testOptions
	opt.Redactor = NewRedactor(values)
	opt.Gate = func(func()) {} // a test that gets no processor for a while is no pause of a program
	return create(t, d, id, opt)
}

func TestValuesAreNotInTheLogWhereverTheOutputIsCut(t *testing.T) {
	values := []string{token, password, other}
	text := token + " a " + token + password + "\ns" + other + "sk-canary-4fQx" + other + "sk-\n" + strings.Repeat("x", 100) +
		token[:len(token)-1] + token + "r" + other[:9] + other + password[:7]
	want := masked(text, values...)
	d, path := openDir(t)
	for cut := range len(text) + 1 {
		for _, step := range []int{len(text), 1, 3, 17} {
			id := fmt.Sprintf("e%d-%d", cut, step)
			w := redacting(t, d, id, values...)
			for _, part := range []string{text[:cut], text[cut:]} {
				for piece := range slices.Chunk([]byte(part), step) {
					w.Write(Stdout, testTime, piece)
				}
			}
			must(t, w.Close())
			if got := string(readFile(t, path, StdoutName(id))); got != want {
				t.Fatalf("cut at %d, then in pieces of %d bytes: the log has\n%q, not\n%q", cut, step, got, want)
			}
			must(t, d.Remove(t.Context(), id))
		}
	}
}

// In large blocks a rare byte of each value is looked for first.
func TestValuesInLargeBlocksAreReplaced(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	for _, values := range [][]string{{password}, {password, token}, {"12345678", password}, {password, token, other, "12345678", "hunter-2"}} {
		r := NewRedactor(values)
		for n := range 400 {
			p := make([]byte, block+rng.IntN(block))
			kinds := []string{"abcdefghijklmnop\n", "sk-canary", "1234567", "x"}[rng.IntN(4)]
			for i := range p {
				p[i] = kinds[rng.IntN(len(kinds))]
			}
			for range n % 3 {
				v := values[rng.IntN(len(values))]
				copy(p[rng.IntN(len(p)):], v[:len(v)-rng.IntN(2)])
			}
			if n%5 == 0 { // at the very end
				copy(p[len(p)-len(values[0]):], values[0])
			}
			if got, want := string(r.Replace(p)), masked(string(p), values...); got != want {
				t.Fatalf("values %q: a block of %d bytes has\n%q, not\n%q", values, len(p), got, want)
			}
		}
	}
}

func TestRunsOfOutputWithoutItsValuesKeepTheirOrder(t *testing.T) {
	d, path := openDir(t)
	w := redacting(t, d, "e", token, other)
	pieces := []piece{
		{Stdout, "one " + token[:5]}, {Stderr, "two " + other + "\n"}, {Stdout, token[5:] + " three\n"},
		{Stderr, other}, {Stdout, "four " + other[:20]}, {Stderr, "five\n"},
	}
	stdout, stderr, runs := layOut(pieces)
	w.WriteRuns(testTime, stdout, stderr, runs)
	if got := string(readFile(t, path, StdoutName("e"))); got != "one *** three\nfour " {
		t.Errorf("what may be the beginning of a value is in the log: %q", got)
	}
	w.WriteRuns(testTime, []byte(other[20:]+"\n"), []byte("six\n"), []Run{{Stderr, 4}, {Stdout, len(other) - 20 + 1}})
	must(t, w.Close())
	want := []piece{
		{Stdout, "one "}, {Stderr, "two ***\n"}, {Stdout, "*** three\n"},
		{Stderr, "***"}, {Stdout, "four "}, {Stderr, "five\nsix\n"}, {Stdout, "***\n"},
	}
	r := open(t, d, "e", Cursor{})
	if got := drain(t, r, 100); !slices.Equal(got, want) || r.Notice() != "" {
		t.Errorf("read %v, want %v; notice %q", got, want, r.Notice())
	}
	must(t, r.Close())
	if n := w.Counts(); n.Stdout != uint64(len("one *** three\nfour ***\n")) || n.StdoutDropped > 0 {
		t.Errorf("counted %+v", n)
	}
}

func TestTheBeginningOfAValueIsHeldBackOnlyForAMoment(t *testing.T) {
	d, path := openDir(t)
	synctest.Test(t, func(t *testing.T) {
		w := redacting(t, d, "e", token)
		gated := 0
		w.gate = func(fn func()) { gated++; fn() }
		content := func() string { return string(readFile(t, path, StdoutName("e"))) }
		start := time.Now()
		w.Write(Stdout, start, []byte("Password: "))
		if got := content(); got != "Password: " {
			t.Errorf("output that begins no value is held back: the log has %q", got)
		}
		w.Write(Stdout, start, []byte(token[:6]))
		time.Sleep(holdTime - 1)
		w.Write(Stderr, start, []byte("in between\n"))
		if got := content(); got != "Password: " {
			t.Errorf("the beginning of a value is in the log at once: %q", got)
		}
		time.Sleep(1 * time.Nanosecond)
		synctest.Wait()
		if got := content(); got != "Password: "+token[:6] || gated != 1 {
			t.Errorf("after a pause the log has %q; %d writes through the gate", got, gated)
		}
		w.Write(Stdout, time.Now(), []byte("\n"+token[:6]))
		w.Flush()
		if got := content(); got != "Password: "+token[:6]+"\n"+token[:6] {
			t.Errorf("after a flush the log has %q", got)
		}
		if got := w.LastWrite().Sub(start); got != holdTime {
			t.Errorf("the last output was read %v after the first", got)
		}
		must(t, w.Close())
	})
}

// Both streams may be held back. What one of them has meanwhile must not delay the other.
func TestAStreamIsHeldBackNoLongerBecauseTheOtherGoesOn(t *testing.T) {
	d, path := openDir(t)
	synctest.Test(t, func(t *testing.T) {
		w := redacting(t, d, "e", token)
		w.gate = func(fn func()) { fn() }
		w.Write(Stderr, time.Now(), []byte("Name: s")) // a prompt whose end may begin the value
		for range 10 {
			time.Sleep(holdTime / 5)
			w.Write(Stdout, time.Now(), []byte("...\n"+token[:2]))
		}
		synctest.Wait()
		if got := string(readFile(t, path, StderrName("e"))); got != "Name: s" {
			t.Errorf("stderr has %q while stdout goes on", got)
		}
		w.Write(Stdout, time.Now(), []byte(token[2:]+"\n"))
		if got := string(readFile(t, path, StdoutName("e"))); strings.Count(got, token[:2]) != 9 || !strings.HasSuffix(got, "\n"+Mask+"\n") {
			t.Errorf("stdout has %q", got)
		}
		must(t, w.Close())
	})
}

func TestAFlushWritesBothStreamsInTheOrderInWhichTheyWereHeldBack(t *testing.T) {
	for _, first := range []Stream{Stdout, Stderr} {
		d, _ := openDir(t)
		second := Stdout + Stderr - first
		w := redacting(t, d, "e", token)
		w.Write(first, testTime, []byte(token[:3]))
		w.Write(second, testTime, []byte(token[:4]))
		w.Flush()
		r := open(t, d, "e", Cursor{})
		if got, want := drain(t, r, 100), []piece{{first, token[:3]}, {second, token[:4]}}; !slices.Equal(got, want) {
			t.Errorf("the log has %v, want %v", got, want)
		}
		must(t, r.Close())
		must(t, w.Close())
	}
}

func TestWhichValuesAreReplaced(t *testing.T) {
	for _, none := range [][]string{nil, {""}, {"1234567"}, {"short\nlines\r\nonly"}} {
		if r := NewRedactor(none); r != nil {
			t.Errorf("%q: replaces %q", none, r.values)
		}
	}
	r := NewRedactor([]string{"-----BEGIN KEY-----\nMIIabcdefg\nend\n", token, token})
	if want := []string{"-----BEGIN KEY-----", "MIIabcdefg", token}; !slices.Equal(r.values, want) {
		t.Errorf("replaces %q, want %q", r.values, want)
	}
	// Bytes that are no text, and more of the same than a window.
	for _, v := range []string{"\xff\x00\xfe\x00\xff\x00\xfe\x00", strings.Repeat("a", 100)} {
		d, path := openDir(t)
		w := redacting(t, d, "e", v)
		text := strings.Repeat(v, 3) + v[1:]
		w.Write(Stderr, testTime, []byte(text))
		must(t, w.Close())
		if got, want := string(readFile(t, path, StderrName("e"))), masked(text, v); got != want {
			t.Errorf("the log has %q, not %q", got, want)
		}
	}
}

// FuzzRedactor compares with the replacement of package strings.
func FuzzRedactor(f *testing.F) {
	f.Add([]byte("abcdefgh\x00defghijklm"), []byte("abcdefghijklmabcdefghijklm"), uint64(1))
	f.Add([]byte("aaaaaaaaab\x00aaaaaaaa"), []byte(strings.Repeat("a", 30)+"b"), uint64(2))
	f.Add([]byte(token+"\x00"+other), []byte(token[:9]+token+other), uint64(3))
	d, err := OpenDir(f.TempDir())
	must(f, err)
	f.Fuzz(func(t *testing.T, list, text []byte, seed uint64) {
		var values []string
		for _, v := range strings.Split(string(list), "\x00") {
			if len(v) >= minValue && !strings.ContainsAny(v, "\r\n") {
				values = append(values, v)
			}
		}
		w := redacting(t, d, "e", values...)
		rng := rand.New(rand.NewPCG(seed, 0))
		// The output is made of pieces of the values and of the text.
		var whole [2][]byte
		for range rng.IntN(20) {
			from := text
			if len(values) > 0 && rng.IntN(3) > 0 {
				from = []byte(values[rng.IntN(len(values))])
			}
			a, b := rng.IntN(len(from)+1), rng.IntN(len(from)+1)
			stream := rng.IntN(2)
			piece := from[min(a, b):max(a, b)]
			if rng.IntN(2) == 0 {
				piece = from
			}
			w.Write(Stdout+Stream(stream), testTime, piece)
			whole[stream] = append(whole[stream], piece...)
		}
		must(t, w.Close())
		for i, name := range []string{StdoutName("e"), StderrName("e")} {
			if got, want := readFile(t, d.path, name), masked(string(whole[i]), values...); string(got) != want {
				t.Errorf("values %q, output %q: the log has\n%q, not\n%q", values, whole[i], got, want)
			}
		}
		must(t, d.Remove(t.Context(), "e"))
	})
}
