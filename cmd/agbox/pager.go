package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/term"
)

// stdoutWidth is the width of the terminal behind stdout in characters, 0 if stdout is no
// terminal.
func (a *app) stdoutWidth() int {
	f, ok := a.stdout.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		return 80
	}
	return width
}

// paged calls write with stdout, or on a terminal with the input of a pager, as git does:
// GIT_PAGER, PAGER or less, none if that is "cat" or empty.
func (a *app) paged(ctx context.Context, never bool, write func(io.Writer) error) error {
	pager := a.pager()
	if never || pager == "" || a.stdoutWidth() == 0 {
		return write(a.stdout)
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", pager)
	cmd.Stdout, cmd.Stderr = a.stdout, a.stderr
	cmd.Env = os.Environ()
	if _, set := a.lookupEnv("LESS"); !set {
		cmd.Env = append(cmd.Env, "LESS=FRX")
	}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return write(a.stdout) // no pager
	}
	err = write(in)
	_ = in.Close()
	_ = cmd.Wait() // it has told on the terminal what is wrong
	if errors.Is(err, syscall.EPIPE) {
		return nil // its user has seen enough
	}
	return err
}

func (a *app) pager() string {
	for _, name := range []string{"GIT_PAGER", "PAGER"} {
		if value, set := a.lookupEnv(name); set {
			if value == "cat" {
				return ""
			}
			return value
		}
	}
	if _, err := exec.LookPath("less"); err != nil {
		return ""
	}
	return "less"
}
