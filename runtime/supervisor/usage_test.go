package supervisor_test

import (
	"strings"
	"testing"
)

// burn is a shell command that uses processor time and then continues.
const burn = `i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done`

func TestProcessorTimeIsOfTheTree(t *testing.T) {
	b := newBox(t)
	for name, script := range map[string]string{
		"leader":     burn,
		"child":      `sh -c '` + burn + `'`,
		"grandchild": `sh -c 'sh -c "true; ` + strings.ReplaceAll(burn, "$", `\$`) + `"; true'`,
	} {
		t.Run(name, func(t *testing.T) {
			if r := b.run(sh(name, script)); r.GetUserUs() < 50_000 {
				t.Errorf("it took %d us", r.GetUserUs())
			}
		})
	}
	if r := b.run(request("idle", "true")); r.GetUserUs() > 50_000 {
		t.Errorf("true took %d us", r.GetUserUs())
	}
}

func TestOrphansThatEndedBeforeTheLeaderCount(t *testing.T) {
	b := newBox(t)
	done := b.fifo("done")
	// The orphan has lost its parent when it works. Its time becomes known only when it
	// is reaped, that is when it is gone from /proc.
	r := b.run(sh("e", `(sh -c 'echo $$ > `+done.Name()+`; `+burn+`' &); read pid < `+done.Name()+`; while [ -e /proc/$pid ]; do sleep 0.01; done`))
	if r.GetUserUs() < 50_000 {
		t.Errorf("the orphan's time is missing: %d us", r.GetUserUs())
	}
}

func TestPeakMemoryIsThatOfTheLargestProcess(t *testing.T) {
	const size = 100 << 20
	b := newBox(t)
	hold := `head -c 100M /dev/zero | tail -c 100M > /dev/null`
	r := b.run(sh("e", hold+"; exit 0"))
	if got := r.GetPeakMemoryBytes(); got < size || got > 2*size {
		t.Errorf("the peak is %d bytes", got)
	}
}

// Two processes of 50 MB that run at the same time: the sum is known only by sampling.
func TestPeakMemoryIsOfTheTreeWhenItLasts(t *testing.T) {
	const each = 50 << 20
	b := newBox(t)
	gate := b.fifo("gate")
	b.start(b.dial(), sh("e", `for i in 1 2; do (head -c 50M /dev/zero; sleep 3) | tail -c 50M > /dev/null & done; wait; read x < `+gate.Name()))
	_, err := gate.WriteString("go\n")
	b.must(err)
	if got := b.end("e").GetPeakMemoryBytes(); got < 2*each || got > 3*each {
		t.Errorf("the peak is %d bytes", got)
	}
}
