// Command scratchprobe is the only file of the test image agbox-test/scratch. It needs no shell and no C library. It
// prints the environment of a process in a sandbox, and behaves as a test requests.
//
//	probe                  wait for SIGTERM or SIGINT, then exit 0 (the image's command)
//	probe args [ARG..]     print each argument on a line of its own
//	probe env              print the environment, sorted
//	probe cwd | uid | gid | pid
//	probe lines N          write "1" to "N" to stdout, one per line
//	probe stderr TEXT      write TEXT and a newline to stderr
//	probe cat              copy stdin to stdout
//	probe sleep DURATION   sleep, for example 1.5s
//	probe exit CODE        exit with CODE
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const exitUsage = 64

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(exitUsage)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		wait()
		return nil
	}
	out := bufio.NewWriter(os.Stdout)
	defer func() { _ = out.Flush() }()

	verb, args := args[0], args[1:]
	switch verb {
	case "args":
		return printLines(out, args)
	case "env":
		return printLines(out, slices.Sorted(slices.Values(os.Environ())))
	case "cwd":
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		return printLines(out, []string{dir})
	case "uid":
		return printLines(out, []string{strconv.Itoa(os.Getuid())})
	case "gid":
		return printLines(out, []string{strconv.Itoa(os.Getgid())})
	case "pid":
		return printLines(out, []string{strconv.Itoa(os.Getpid())})
	case "cat":
		_, err := io.Copy(out, os.Stdin)
		return err
	}
	if len(args) != 1 {
		return errors.New("unknown command, or not exactly one argument: " + verb)
	}
	return runWith(out, verb, args[0])
}

// runWith runs the verbs that take one argument.
func runWith(out io.Writer, verb, arg string) error {
	switch verb {
	case "stderr":
		fmt.Fprintln(os.Stderr, arg)
		return nil
	case "sleep":
		d, err := time.ParseDuration(arg)
		if err != nil {
			return err
		}
		time.Sleep(d)
		return nil
	}
	n, err := strconv.Atoi(arg)
	if err != nil {
		return err
	}
	switch verb {
	case "lines":
		for i := range n {
			if _, err := fmt.Fprintln(out, i+1); err != nil {
				return err
			}
		}
		return nil
	case "exit":
		os.Exit(n)
	}
	return errors.New("unknown command: " + verb)
}

func printLines(out io.Writer, lines []string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

func wait() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
