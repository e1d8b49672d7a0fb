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
	copyRounds = 3
	// bigFile is the size of the one big file, in MiB.
	bigFile = 1024
	// smallFiles is the number of small ones, 100 in each folder.
	smallFiles = 10_000
)

// benchCopy compares agbox cp with docker cp on the same sandbox: one big file and many
// small ones, in and out. Each copy but the first replaces the one before.
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
		if err := exec.CommandContext(ctx, "docker", "exec", container, "mkdir", "/tmp/ours", "/tmp/theirs").Run(); err != nil {
			return fmt.Errorf("make the target folders: %w", err)
		}
		command := func(name string, args ...string) func() error {
			return func() error { return exec.CommandContext(ctx, name, append([]string{"cp", "-q"}, args...)...).Run() }
		}
		agbox := filepath.Join("bin", "agbox")
		ours, theirs := filepath.Join(work, "ours"), filepath.Join(work, "theirs")
		for _, name := range []string{"big", "many"} {
			in := pair{
				theirs: command("docker", filepath.Join(work, name), container+":/tmp/theirs/"),
				ours:   command(agbox, filepath.Join(work, name), box+":/tmp/ours/"),
			}
			if err := in.run("copy of "+name+" in", "docker cp", copyRounds); err != nil {
				return err
			}
			out := pair{
				theirs: command("docker", container+":/tmp/theirs/"+name, theirs),
				ours:   command(agbox, box+":/tmp/ours/"+name, ours),
			}
			if err := out.run("copy of "+name+" out", "docker cp", copyRounds); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeSources makes the file big and the folder many, and folders for what comes back.
func makeSources(work string) error {
	for _, dir := range []string{"ours", "theirs"} {
		if err := os.Mkdir(filepath.Join(work, dir), 0o755); err != nil {
			return err
		}
	}
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
