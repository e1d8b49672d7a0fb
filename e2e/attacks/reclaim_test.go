package attacks

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
)

// memberOfDocker may use Docker and has no other rights.
const memberOfDocker = 64322

// unremovable are commands of root in a sandbox. After each, a user of the host cannot
// remove the folders that the sandbox mounts.
var unremovable = map[string]string{
	"folders that nobody may read": `for d in /.agbox/link /var/log/agents-sandbox; do mkdir -p $d/a/b; touch $d/a/b/c; chmod 0 $d/a/b $d/a; done`,
	"the folders themselves":       `for d in /.agbox/link /var/log/agents-sandbox; do touch $d/c; chown 0:0 $d; chmod 0 $d; done`,
	"a sticky folder of root":      `for d in /.agbox/link /var/log/agents-sandbox; do touch $d/c; chown 0:0 $d; chmod 1777 $d; done`,
	"a deep tree": `for d in /.agbox/link /var/log/agents-sandbox; do cd $d;
		i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done; touch c; cd $d; chmod 0 d; done`,
}

func TestWhatRootInASandboxLeavesIsRemovedByADaemonWithoutRoot(t *testing.T) {
	t.Parallel()
	in := harness.New(t, asMemberOfDocker(t, memberOfDocker))
	write(t, in, "config", map[string]string{"agboxd.yaml": "keep-deleted: 1s\n"})
	for name, command := range unremovable {
		Row(t, 10, name)
		box := in.Must(t, "create", "--image", harness.ImageBusybox)
		guest, logs := filepath.Join(in.Home, "data", "guest", box), filepath.Join(in.Home, "data", "exec-logs", box)
		// Its output and its end may be unreadable afterwards.
		p := in.Start(t, "exec", box, "--", "sh", "-c", command+"; mkdir -p /.agbox/link/done; sleep 1000")
		harness.Eventually(t, "the sandbox has made what cannot be removed", func() bool {
			select {
			case <-p.Ended(): // the daemon has counted what it cannot read, and has stopped the sandbox
				return true
			default:
			}
			_, err := os.Stat(filepath.Join(guest, "link", "done"))
			return err == nil
		})
		in.Must(t, "rm", "--wait", "-f", box)
		<-p.Ended()
		if _, err := os.Lstat(guest); !os.IsNotExist(err) {
			t.Errorf("%s: the folder %s of a removed sandbox: %v", name, guest, err)
		}
		harness.Eventually(t, "the logs are removed after their time", func() bool {
			_, err := os.Lstat(logs)
			return os.IsNotExist(err)
		})
	}
	if left := in.Inventory(t); !left.Empty() {
		t.Errorf("the engine has %+v", left)
	}
}

func TestTheLogsStayReadableWhenASandboxIsReclaimed(t *testing.T) {
	t.Parallel()
	Row(t, 10, "a folder of root among the logs")
	in := harness.New(t, asMemberOfDocker(t, memberOfDocker+1))
	box := in.Create(t, "box", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", box, "--", "echo", "kept")
	if said := in.Must(t, "logs", "-f", job); said != "kept" {
		t.Fatalf("the log has %q", said)
	}
	in.Must(t, "exec", box, "--", "sh", "-c", "mkdir -p /var/log/agents-sandbox/a/b; chmod 0 /var/log/agents-sandbox/a")
	in.Must(t, "rm", "--wait", "-f", "--keep-logs", box)
	if said := in.Must(t, "logs", job); said != "kept" {
		t.Errorf("after the removal the log has %q", said)
	}
	err := filepath.WalkDir(filepath.Join(in.Home, "data", "exec-logs", box), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		// In a user namespace they stay with root of the sandbox, which has no other rights on the host.
		if err == nil && *placeName != inNamespaces && info.Sys().(*syscall.Stat_t).Uid != memberOfDocker+1 {
			t.Errorf("%s belongs to user %d", path, info.Sys().(*syscall.Stat_t).Uid)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestARemovalWhoseDaemonIsKilledWhileItReclaimsGoesOn(t *testing.T) {
	t.Parallel()
	proxy := engine.NewProxy(t, strings.TrimPrefix(harness.DockerAPI.DaemonHost(), "unix://"))
	socket := strings.TrimPrefix(proxy.Host(), "unix://")
	if err := errors.Join(os.Chmod(filepath.Dir(socket), 0o711), os.Chmod(socket, 0o666)); err != nil {
		t.Fatal(err)
	}
	user := &syscall.Credential{Uid: memberOfDocker + 3, Gid: memberOfDocker + 3}
	in := harness.New(t, harness.On(proxy.Host(), harness.Engine), func(in *harness.Install) { in.Who = user })
	for _, step := range []string{"/containers/create", "/containers/*/start", "/containers/*/wait"} {
		Row(t, 10, "the daemon is killed while a container removes what root has left: "+step)
		box := in.Must(t, "create", "--image", harness.ImageBusybox)
		in.Must(t, "exec", box, "--", "sh", "-c", "mkdir -p /.agbox/link/a/b; chmod 0 /.agbox/link/a")
		kill, reached := in.AimAtDaemon(t), make(chan struct{})
		once := sync.OnceFunc(func() { close(reached) })
		proxy.Choose(func(r *http.Request) engine.Fault {
			if engine.Matches(r, http.MethodPost, step) {
				once()
				return engine.Hang
			}
			return engine.Pass
		})
		removal := in.Start(t, "rm", "--wait", "-f", box)
		select {
		case <-reached:
		case <-removal.Ended():
			t.Fatalf("the sandbox was removed without %s", step)
		case <-harness.Bounded(t).Done():
			t.Fatalf("%s was not reached", step)
		}
		kill()
		proxy.Choose(nil)
		proxy.DropHeld()
		in.Must(t, "daemon", "start")
		removal.Wait(t).Want(t, 0)
		if _, err := os.Lstat(filepath.Join(in.Home, "data", "guest", box)); !os.IsNotExist(err) {
			t.Errorf("killed in %s: the folder of the removed sandbox: %v", step, err)
		}
		if left := in.Inventory(t); !left.Empty() {
			t.Errorf("killed in %s: the engine has %+v", step, left)
		}
	}
}
