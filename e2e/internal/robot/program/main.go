// Command robot is the program of an agent for tests; robot.Plan describes what it does.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
)

// options are the flags.
type options struct {
	folder        string
	steps, deaths int
	checkpoint    int
	measure       int
	seed          uint64
	die           string
	pace, beat    time.Duration
	waitAt        int
	ignoreTerm    bool
	// fanout is how many children it has, and depth how many generations are below it.
	fanout, depth int
	// stream is that of the family, or empty.
	stream string
	// holds has it hold its children. resources is of how many resources it claims two in every
	// second step.
	holds     bool
	resources int
	// talk, listen and flood are numbers of messages to measure.
	talk, listen, flood int
	// attack is an op, or empty, and length how long it is sent.
	attack string
	length time.Duration
}

// badExit is the exit code for errors of the robot itself.
const badExit = 99

func main() {
	var o options
	flag.StringVar(&o.folder, "folder", "/robot", "folder of diary and effects")
	flag.IntVar(&o.steps, "steps", 20, "how many steps the work has")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of all that is random")
	flag.IntVar(&o.deaths, "deaths", 0, "how many incarnations die at a random report")
	flag.StringVar(&o.die, "die", "", "deaths, as 1@3:kill,2@5+:exit7")
	flag.DurationVar(&o.pace, "pace", 0, "pause after each step")
	flag.IntVar(&o.waitAt, "wait-at", 0, "step before which the gate must be open")
	flag.DurationVar(&o.beat, "beat", 0, "time between beats")
	flag.BoolVar(&o.ignoreTerm, "ignore-term", false, "go on after SIGTERM")
	flag.IntVar(&o.checkpoint, "checkpoint", 0, "save a checkpoint with so many bytes after each step")
	flag.IntVar(&o.fanout, "fanout", 0, "how many children it and its descendants have; each message goes to the parent")
	flag.IntVar(&o.depth, "depth", 0, "how many generations are below it")
	flag.StringVar(&o.stream, "stream", "", "stream on which it and its descendants tell of each step")
	flag.BoolVar(&o.holds, "holds", false, "hold the children, let go of one in each third step and hold it again in the next one")
	flag.IntVar(&o.resources, "resources", 0, "claim two of so many resources in every second step")
	flag.IntVar(&o.measure, "measure", 0, "do nothing but measure so many reports of each kind")
	flag.IntVar(&o.talk, "talk", 0, "do nothing but spawn a child that listens, and send it twice so many messages")
	flag.IntVar(&o.listen, "listen", 0, "do nothing but receive twice so many messages of the parent and measure how long they took")
	flag.IntVar(&o.flood, "flood", 0, "do nothing but send so many messages on the stream")
	flag.StringVar(&o.attack, "attack", "", "do nothing but send this op as fast as it can")
	flag.DurationVar(&o.length, "length", 10*time.Second, "how long -attack lasts")
	flag.Parse()
	code, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "robot:", err)
		code = badExit
	}
	os.Exit(code)
}

// run does the work and returns the exit code.
func run(o options) (code int, err error) {
	switch {
	case o.measure > 0:
		return 0, measure(o.measure, o.folder)
	case o.talk > 0:
		return 0, talk(o.talk)
	case o.listen > 0:
		return 0, listen(o.listen)
	case o.flood > 0:
		return 0, flood(o.flood, o.stream)
	case o.attack != "":
		return 0, attack(o.attack, o.length)
	}
	r, err := newRobot(o)
	if err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() { // ends with the process
		for range signals {
			r.write(diary.Entry{What: diary.Signal, At: time.Now().UnixMilli()})
			r.terminated.Store(!o.ignoreTerm)
		}
	}()
	if o.beat > 0 {
		go r.beats() // ends with the process
	}
	code, err = r.work()
	if err != nil {
		r.write(diary.Entry{What: diary.Broke, Text: err.Error(), At: time.Now().UnixMilli()})
	}
	return code, err
}
