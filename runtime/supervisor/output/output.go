// Package output moves the output of commands from their pipes and terminals into
// their logs, in the order in which it was written.
//
// A Collector serves all commands of a supervisor. An Output belongs to one command.
// Its owner makes it, gives its descriptors to the process, keeps Run running in a
// goroutine of its own, and calls Close before it waits for Run.
//
// # The order of two pipes
//
// The kernel queues a signal, here called a token, for each write into a pipe. The
// sequencer receives the tokens of all commands. A matcher puts the packets of the two
// pipes of a command into the order of the tokens. It has no descriptors, no clock and no
// goroutines, so tests drive it with pipes in memory.
//
// The difficulty is a full pipe, because a writer that finds one also sends a token. The
// simpler alternative is to read in token order until a pipe is full, and in any order
// from then on until both are empty. It was measured with pipes of 1 MiB from the start,
// in 32 runs of a program that does nothing but write 10,000 alternating lines: all 32
// were out of order, and so were 62 % of the lines. The reader is often descheduled for
// longer than a pipe takes to fill. So a pipe that is nearly full is left alone until its
// writer waits, and is then emptied at one moment with splice(2). That makes the tokens
// of a full pipe countable: 160 of 160 such runs were exact, and 20 of 20 with 200,000
// lines, on idle and on busy processors.
package output

import (
	"io"
	"os"
	"sync"

	"github.com/agbox/agbox/logs"
)

// Threads is how many threads the package needs at once beyond those that run Go
// code: the sequencer's, and that on which the runtime makes threads from then on.
const Threads = 2

// Collector makes the outputs of commands.
type Collector struct {
	disk Gate
	// sequencer tells the order of outputs; nil where the kernel does not.
	sequencer *sequencer
}

// New prepares a collector. The logs are written through the gate.
func New(disk Gate) *Collector { return &Collector{disk: disk} }

// Start begins to watch the order of writes. Without it, and where the kernel does
// not tell it, the order of outputs is that of reading.
func (c *Collector) Start() { c.sequencer, _ = startSequencer() }

// Stop ends what Start began. All outputs must have ended.
func (c *Collector) Stop() { c.sequencer.stop() }

// outlet moves output of an exec into its log.
type outlet interface {
	// run returns when there will be no more output.
	run()
	// drain returns when everything that was written before the call is in the log.
	drain()
}

// Output is the output of one command on its way into the log.
type Output struct {
	// Stdout and Stderr are what the process gets.
	Stdout, Stderr *os.File
	// made are the files of the process that are the exec's own.
	made []io.Closer
	// held stays open here as long as the process lives; nil if nothing has to.
	held    *os.File
	outlets []outlet
	// ends are the supervisor's ends of the output.
	ends []io.Closer
}

// Pipes makes the outputs of a command without a terminal. Where the order of writes
// cannot be had, it is that of reading.
func (c *Collector) Pipes(w *logs.Writer) (*Output, error) {
	if c.sequencer != nil {
		x, err := c.sequencer.open(w, c.disk)
		if err != nil {
			return nil, err
		}
		return &Output{
			Stdout: x.child[0], Stderr: x.child[1],
			made:    []io.Closer{x.child[0], x.child[1]},
			outlets: []outlet{x},
			ends:    []io.Closer{x},
		}, nil
	}
	stdout, out, err := newPipePump(logs.Stdout, w, c.disk)
	if err != nil {
		return nil, err
	}
	stderr, other, err := newPipePump(logs.Stderr, w, c.disk)
	if err != nil {
		_, _ = stdout.file.Close(), out.Close()
		return nil, err
	}
	return &Output{
		Stdout: out, Stderr: other,
		made:    []io.Closer{out, other},
		outlets: []outlet{stdout, stderr},
		ends:    []io.Closer{stdout.file, stderr.file},
	}, nil
}

// Terminal takes the output of a terminal, which becomes the Output's own. slave is
// what the process gets. The master must stay open until Close.
func (c *Collector) Terminal(w *logs.Writer, master, slave *os.File) *Output {
	return &Output{
		Stdout: slave, Stderr: slave,
		// A master that nobody has the other end of has come to its end, and the
		// process may open its terminal again.
		held:    slave,
		outlets: []outlet{&pump{stream: logs.Stdout, writer: w, disk: c.disk, file: master, terminal: true}},
		ends:    []io.Closer{master},
	}
}

// Run moves output until nobody has it open any more, or until Close.
func (o *Output) Run() {
	var running sync.WaitGroup
	for _, out := range o.outlets[1:] {
		running.Go(out.run)
	}
	o.outlets[0].run()
	running.Wait()
}

// Started closes what only the process needs, once it has it.
func (o *Output) Started() { closeAll(o.made) }

// Drain is called once, when the process has ended. It returns when everything that
// was written before the call is in the log, however long somebody else keeps the
// output open. Run must be running.
func (o *Output) Drain() {
	o.release()
	for _, out := range o.outlets {
		out.drain()
	}
}

// release closes what was held for the process.
func (o *Output) release() {
	if o.held != nil {
		_ = o.held.Close()
	}
}

// Close gives up what is written from now on: it has no reader.
func (o *Output) Close() { closeAll(o.ends) }

// Discard closes everything of a command whose process was not started.
func (o *Output) Discard() {
	o.Started()
	o.release()
	o.Close()
}

func closeAll(all []io.Closer) {
	for _, c := range all {
		_ = c.Close() // pipes and terminals hold nothing that a close could lose
	}
}
