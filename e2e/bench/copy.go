package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/runtime"
)

const (
	// copyRounds is how often each side copies.
	copyRounds = 5
	// bigFile is the size of the one big file, in MiB.
	bigFile = 256
	// smallFiles is the number of small ones, 100 in each folder.
	smallFiles = 10_000
)

// benchCopy compares agbox cp with docker cp on the same sandbox: one big file and many
// small ones, in and out. Each copy is a new one, and nothing is removed in between: an ext4 without
// a journal passes over what was just removed, for a minute.
func benchCopy(ctx context.Context) error {
	work, err := os.MkdirTemp("/var/tmp", "agbench-copy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := makeSources(work); err != nil {
		return err
	}
	return withSandbox(ctx, func(_ *client.Client, box string) error {
		container := runtime.PrimaryName(box)
		copies := 0
		command := func(name, source, target string) func() error {
			return func() error {
				copies++
				to := fmt.Sprint(target, copies)
				return exec.CommandContext(ctx, name, "cp", "-q", source, to).Run()
			}
		}
		agbox := filepath.Join("bin", "agbox")
		for _, name := range []string{"big", "many"} {
			in := pair{
				theirs: command("docker", filepath.Join(work, name), container+":/tmp/"+name),
				ours:   command(agbox, filepath.Join(work, name), box+":/tmp/"+name),
			}
			if err := in.inTurns("copy of "+name+" in", "docker cp", copyRounds, 1); err != nil {
				return err
			}
			from := fmt.Sprint("/tmp/", name, copies)
			out := pair{
				theirs: command("docker", container+":"+from, filepath.Join(work, "out")),
				ours:   command(agbox, box+":"+from, filepath.Join(work, "out")),
			}
			if err := out.inTurns("copy of "+name+" out", "docker cp", copyRounds, 1); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeSources makes the file big and the folder many.
func makeSources(work string) error {
	block := bytes.Repeat([]byte("not a block of zeros.."), 1<<16)[:1<<20]
	big, err := os.Create(filepath.Join(work, "big"))
	if err != nil {
		return err
	}
	defer big.Close()
	for i := range bigFile {
		copy(block, fmt.Sprint(i))
		if _, err := big.Write(block); err != nil {
			return err
		}
	}
	for i := range smallFiles {
		dir := filepath.Join(work, "many", fmt.Sprint(i/100))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), block[:i%2000], 0o644); err != nil {
			return err
		}
	}
	return big.Close()
}
