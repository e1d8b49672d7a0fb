// Package harness runs the real binaries for black-box tests: separate installs, their
// commands and daemons, and checks of what they leave in the engine.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	dockerclient "github.com/docker/docker/client"
	"go.uber.org/goleak"

	"github.com/agbox/agbox/runtime/docker"
)

// The local images. scripts/images.sh describes their content.
const (
	ImageBusybox    = "agbox-test/busybox:latest"
	ImageUser       = "agbox-test/user:latest"
	ImageEntrypoint = "agbox-test/entrypoint:latest"
	ImageScratch    = "agbox-test/scratch:latest"
	ImageDebian     = "agbox-test/debian:latest"
	ImageRedis      = "agbox-test/redis:latest"
	ImageLanguages  = "agbox-test/languages:latest"
	ImagePostgres   = "agbox-test/postgres:latest"
)

// Remedy is the advice for everything that can be missing.
const Remedy = "run 'make images build' in the repository"

// Patience bounds every wait. It is much longer than any operation takes on a small busy
// machine.
const Patience = 90 * time.Second

// Shared by all tests of a package; set by Setup.
var (
	// Binaries is a folder with a copy of the binaries that every user may run. A build
	// during the tests does not change it.
	Binaries string
	// Engine and DockerAPI access the engine without agbox.
	Engine    *docker.Engine
	DockerAPI *dockerclient.Client
)

// Setup connects to the engine, which must have the images, and copies the binaries from
// a folder. Call tidy when all tests are done.
func Setup(from string, images ...string) (tidy func(), err error) {
	hearHangups()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	DockerAPI, err = dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	if Engine, err = docker.New(docker.Options{}); err != nil {
		return nil, err
	}
	if _, err := DockerAPI.Ping(ctx); err != nil {
		return nil, fmt.Errorf("these tests need a Docker engine that you may use (%w): %s", err, Remedy)
	}
	for _, image := range images {
		if _, err := DockerAPI.ImageInspect(ctx, image); err != nil {
			return nil, fmt.Errorf("the image %s is not here (%w): %s", image, err, Remedy)
		}
	}
	Binaries, err = os.MkdirTemp("/tmp", "abbin")
	if err != nil {
		return nil, err
	}
	if err := CopyBinaries(from, Binaries); err != nil {
		return nil, errors.Join(err, os.RemoveAll(Binaries))
	}
	return func() {
		_ = os.RemoveAll(Binaries)
		_ = DockerAPI.Close()
		_ = Engine.Close()
	}, nil
}

// hearHangups has the processes of the tests die of SIGHUP also under nohup. They would inherit that it is
// ignored, but what is caught has its default action after exec. The test process itself goes on, as nohup says.
func hearHangups() {
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
}

// GoroutinesLeft reports goroutines that the tests of a package have left. Some end
// shortly after their owner: the readers of closed connections.
func GoroutinesLeft() error {
	for until := time.Now().Add(Patience); ; {
		err := goleak.Find() // Find retries several times, with pauses
		if err == nil || time.Now().After(until) {
			return err
		}
	}
}

// CopyBinaries copies all binaries into an existing folder, so that every user may run
// them.
func CopyBinaries(from, to string) error {
	if err := os.Chmod(to, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"agbox", "agboxd", "agbox-init"} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return fmt.Errorf("there is no %s (%w): %s", name, err, Remedy)
		}
		if err := WriteProgram(filepath.Join(to, name), content); err != nil {
			return err
		}
	}
	return nil
}

// WriteProgram makes a new file that every user may run. Other tests start processes all
// the time. A process that is forked while the file is open for writing holds it open
// until its own exec, and until then nobody can run the file ("text file busy"). So
// WriteProgram prevents forks meanwhile.
func WriteProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = out.Write(content)
	// Independent of the umask.
	return errors.Join(err, out.Chmod(0o755), out.Close())
}
