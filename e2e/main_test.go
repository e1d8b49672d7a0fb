package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	dockerclient "github.com/docker/docker/client"
	"go.uber.org/goleak"

	"github.com/agbox/agbox/runtime/docker"
)

// The local images; scripts/images.sh says what is in them.
const (
	imageBusybox    = "agbox-test/busybox:latest"
	imageUser       = "agbox-test/user:latest"
	imageEntrypoint = "agbox-test/entrypoint:latest"
	imageScratch    = "agbox-test/scratch:latest"
	imageDebian     = "agbox-test/debian:latest"
)

// remedy is what helps against everything that can be missing.
const remedy = "run 'make images build' in the repository"

// patience bounds every wait of these tests: far more than anything takes on a
// small machine with other work to do.
const patience = 90 * time.Second

// What all tests share; set once before they run.
var (
	// binaries holds a copy of the binaries that every user may run, and that a
	// build during the tests does not change.
	binaries string
	// engine and dockerAPI look at the engine beside agbox.
	engine    *docker.Engine
	dockerAPI *dockerclient.Client
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	tidy, err := prepare()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	tidy()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "e2e: the tests left goroutines behind:", err)
		return 1
	}
	return code
}

// prepare copies the binaries and connects to the engine.
func prepare() (tidy func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dockerAPI, err = dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	if engine, err = docker.New(docker.Options{}); err != nil {
		return nil, err
	}
	if _, err := dockerAPI.Ping(ctx); err != nil {
		return nil, fmt.Errorf("these tests need a Docker engine that you may use (%w): %s", err, remedy)
	}
	for _, image := range []string{imageBusybox, imageUser, imageEntrypoint, imageScratch, imageDebian} {
		if _, err := dockerAPI.ImageInspect(ctx, image); err != nil {
			return nil, fmt.Errorf("the image %s is not here (%w): %s", image, err, remedy)
		}
	}
	binaries, err = os.MkdirTemp("/tmp", "abbin")
	if err != nil {
		return nil, err
	}
	if err := copyBinaries(filepath.Join("..", "bin"), binaries); err != nil {
		return nil, errors.Join(err, os.RemoveAll(binaries))
	}
	return func() {
		_ = os.RemoveAll(binaries)
		_ = dockerAPI.Close()
		_ = engine.Close()
	}, nil
}

// copyBinaries makes a folder of binaries that every user may run.
func copyBinaries(from, to string) error {
	if err := os.Chmod(to, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"agbox", "agboxd", "agbox-init"} {
		in, err := os.Open(filepath.Join(from, name))
		if err != nil {
			return fmt.Errorf("there is no %s (%w): %s", name, err, remedy)
		}
		defer in.Close()
		out, err := os.OpenFile(filepath.Join(to, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		// Against a narrow umask.
		if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
			return err
		}
	}
	return nil
}
