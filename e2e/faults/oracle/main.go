// Command oracle runs inside sandboxes under test. It writes lines in which the reader of
// the log can detect loss, repetition, change or reordering, and records that it has run.
//
//	oracle ID COUNT CODE [PAUSE_EVERY PAUSE]
//
// It appends ID to /var/log/agents-sandbox/ran, writes COUNT lines "seq,crc" to stdout,
// and every tenth also to stderr, with a PAUSE after each PAUSE_EVERY lines, and ends
// with exit code CODE. The crc is that of ID and the number. Before the last line it
// waits while the file /var/log/agents-sandbox/hold exists.
package main

import (
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"time"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		code = 99
	}
	os.Exit(code)
}

// run does what the arguments say and returns the exit code in them.
func run(args []string) (code int, err error) {
	if len(args) != 3 && len(args) != 5 {
		return 0, fmt.Errorf("want ID COUNT CODE [PAUSE_EVERY PAUSE], have %q", args)
	}
	id := args[0]
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return 0, err
	}
	code, err = strconv.Atoi(args[2])
	if err != nil {
		return 0, err
	}
	every, pause := count+1, time.Duration(0)
	if len(args) == 5 {
		if every, err = strconv.Atoi(args[3]); err != nil {
			return 0, err
		}
		if pause, err = time.ParseDuration(args[4]); err != nil {
			return 0, err
		}
	}
	if err := leaveTrace(id); err != nil {
		return 0, err
	}
	for seq := 1; seq <= count; seq++ {
		for seq == count && held() {
			time.Sleep(10 * time.Millisecond)
		}
		// One write per line, as a program without buffering does.
		line := fmt.Appendf(nil, "%d,%08x\n", seq, crc32.ChecksumIEEE(fmt.Appendf(nil, "%s %d", id, seq)))
		if _, err := os.Stdout.Write(line); err != nil {
			return 0, err
		}
		if seq%10 == 0 {
			if _, err := os.Stderr.Write(line); err != nil {
				return 0, err
			}
		}
		if seq%every == 0 {
			time.Sleep(pause)
		}
	}
	return code, nil
}

func held() bool {
	_, err := os.Stat("/var/log/agents-sandbox/hold")
	return err == nil
}

func leaveTrace(id string) error {
	ran, err := os.OpenFile("/var/log/agents-sandbox/ran", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	if _, err := ran.WriteString(id + "\n"); err != nil {
		return err
	}
	return ran.Close()
}
