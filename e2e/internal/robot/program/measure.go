package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// block is how many times each kind of report is measured before the next one's turn.
const block = 25

// sparse is how many turns come to one of those kinds that write much.
const sparse = 5

// stateSize is the size of the checkpoints that are measured.
const stateSize = 64 << 10

// measure reports the same again and again and prints the times in nanoseconds by kind, as
// a JSON object. Beside them are those of a program that answers each line with the same
// line, and of a file that is written and synced as a checkpoint is.
func measure(rounds int, folder string) error {
	state := fmt.Appendf(nil, `{"padding":%q}`, strings.Repeat("x", stateSize-14))
	echo, err := newEcho()
	if err != nil {
		return err
	}
	defer echo.close()
	s := newSocket()
	ask := func(rep report) func() error {
		return func() error {
			got, err := s.ask(rep)
			if err == nil && !got.OK {
				err = fmt.Errorf("%s: %s", rep.Op, got.Error.Message)
			}
			return err
		}
	}
	kinds := []struct {
		name string
		do   func() error
	}{
		{"echo", echo.ask},
		{"beat", ask(report{Op: "beat"})},
		{"gate", ask(report{Op: "gate", Tool: "some-tool"})},
		{"usage", ask(report{Op: "usage", InputTokens: 1, OutputTokens: 1})},
		{"file", func() error { return writeFile(folder, state) }},
		{"checkpoint", ask(report{Op: "checkpoint", Bytes: len(state), state: state})},
	}
	times := make(map[string][]time.Duration)
	for turn := range max(1, rounds/block) {
		for _, kind := range kinds {
			if turn%sparse > 0 && slices.Contains([]string{"file", "checkpoint"}, kind.name) {
				continue
			}
			for range block {
				begun := time.Now()
				if err := kind.do(); err != nil {
					return err
				}
				times[kind.name] = append(times[kind.name], time.Since(begun))
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(times)
}

// writeFile replaces a file so that it is complete and on disk.
func writeFile(folder string, content []byte) error {
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	temporary := filepath.Join(folder, "measured.tmp")
	f, err := os.Create(temporary)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temporary, filepath.Join(folder, "measured"))
	}
	return errors.Join(err, dir.Sync())
}

// echo is a listener in this program that answers each line with the same line, and a
// connection to it.
type echo struct {
	listener net.Listener
	conn     net.Conn
	in       *bufio.Reader
	line     []byte
}

func newEcho() (*echo, error) {
	dir, err := os.MkdirTemp("", "echo")
	if err != nil {
		return nil, err
	}
	e := &echo{line: []byte(`{"op":"beat","id":1,"token":"` + os.Getenv("AGBOX_TOKEN") + "\"}\n")}
	if e.listener, err = net.Listen("unix", filepath.Join(dir, "socket")); err != nil {
		return nil, err
	}
	go func() { // ends with the process
		conn, err := e.listener.Accept()
		if err != nil {
			return
		}
		for in := bufio.NewReader(conn); ; {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			if _, err := conn.Write(line); err != nil {
				return
			}
		}
	}()
	if e.conn, err = net.Dial("unix", e.listener.Addr().String()); err != nil {
		return nil, err
	}
	e.in = bufio.NewReader(e.conn)
	return e, nil
}

func (e *echo) ask() error {
	if _, err := e.conn.Write(e.line); err != nil {
		return err
	}
	_, err := e.in.ReadBytes('\n')
	return err
}

func (e *echo) close() {
	_ = e.conn.Close()
	_ = e.listener.Close()
}
