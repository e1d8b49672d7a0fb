package attacks

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestWhatIsSwappedDuringTheQuestionIsNotGranted(t *testing.T) {
	t.Parallel()
	Row(t, 12, "a source inside the folder is swapped while the question is on the screen")
	in := harness.New(t)
	write(t, in, "secret", map[string]string{"key": "secret\n"})
	dir := write(t, in, "project", map[string]string{
		"agbox.yaml": "image: " + harness.ImageBusybox + "\nmounts: [\"./data:/data\"]\ncopies: [\"./data:/copy\"]\nports: [80]\n", "data/a": "mine\n",
	})
	data := filepath.Join(dir, "data")
	asked := in.OnTerminalIn(t, dir, nil, "create", "demo")
	asked.Await("[y/N] ")
	if err := replaced(data, "../secret")(); err != nil {
		t.Fatal(err)
	}
	asked.Types("y\n")
	if code := asked.Wait(); code == 0 || !strings.Contains(asked.Screen(), "changed while you were asked") {
		t.Errorf("create gives %d: %s", code, asked.Screen())
	}
	if r := in.Agbox(t, "exec", "demo", "--", "cat", "/data/key", "/copy/key"); r.Stdout != "" {
		t.Errorf("the sandbox has %q", r.Stdout)
	}
	// The answer is about what was shown, so the same question is not asked again.
	restored(t, data)
	if err := os.Remove(data + ".real"); err == nil {
		t.Error("nothing was restored")
	}
	from(t, in, dir, "create", "demo").Want(t, 0)
	harness.WantSame(t, "the sandbox", inside(t, in, "demo", "cat /data/a /copy/a"), "mine\nmine\n")
}

func TestWhatIsSwappedAfterTheRequestIsNotGranted(t *testing.T) {
	t.Parallel()
	Row(t, 12, "a source inside the folder is swapped after the sandbox was accepted")
	proxy, in := behindProxy(t)
	write(t, in, "secret", map[string]string{"key": "secret\n"})
	for name, field := range map[string]string{"mount": "mounts", "copy": "copies"} {
		dir := write(t, in, name, map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\n" + field + ": [\"./data:/data\"]\n", "data/a": "mine\n"})
		data := filepath.Join(dir, "data")
		// The network is made after the acceptance and before any source is opened.
		atRequest(t, proxy, "/networks/create", replaced(data, "../secret"))
		r := from(t, in, dir, "create", name, "--trust")
		if r.Code == 0 || !strings.Contains(r.Stderr, "has become a symbolic link to "+in.Home+"/secret") {
			t.Errorf("%s: create gives %d: %s", name, r.Code, r.Stderr)
		}
		if r := in.Agbox(t, "exec", name, "--", "cat", "/data/key"); r.Stdout != "" {
			t.Errorf("%s: the sandbox has %q", name, r.Stdout)
		}
		if target, err := os.Readlink(data); err != nil || target != "../secret" {
			t.Errorf("%s: nothing was swapped: %q, %v", name, target, err)
		}
	}
}

func TestAKeyInAVariableIsNotHandedToARepositoryUnasked(t *testing.T) {
	t.Parallel()
	Row(t, 113, "a sandbox file runs a hook with the key that the preset hands over as a variable")
	in := harness.New(t)
	env := []string{"ANTHROPIC_API_KEY=the-key-of-the-user"}
	in.Env = append(in.Env, env...)
	dir := write(t, in, "project", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\npost_create: [\"echo stolen: $ANTHROPIC_API_KEY\"]\n"})
	const line = "! login     the variable ANTHROPIC_API_KEY, which you hand over yourself, to what this file describes"
	r := from(t, in, dir, "claude", "--", "-p", "hello").Want(t, 125)
	if !strings.Contains(r.Stderr, line) {
		t.Errorf("without a terminal: %s", r.Stderr)
	}
	asked := in.OnTerminalIn(t, dir, env, "claude")
	answered(asked, "[y/N] ", "n")
	if said := asked.Screen(); !strings.Contains(said, "variable ANTHROPIC_API_KEY, which you hand over") || strings.Contains(said+r.Stderr, "the-key-of") || strings.Contains(said+r.Stderr, "stolen") {
		t.Errorf("on a terminal: %s", said)
	}
	if got := in.Must(t, "ls", "--deleted", "-q"); got != "" {
		t.Errorf("there are sandboxes: %s", got)
	}
}

func TestTheQuestionFitsTheScreenAndIsNotAnsweredBeforehand(t *testing.T) {
	t.Parallel()
	Row(t, 114, "harmless requests fill the screen, and keys are typed before the question")
	in := harness.New(t)
	text := "image: " + harness.ImageBusybox + "\nports: ["
	for i := range 60 {
		text += fmt.Sprintf("%d, ", 8000+i)
	}
	dir := write(t, in, "project", map[string]string{"agbox.yaml": text + "80]\nmounts: [\"./data:/data:rw\"]\n", "data/a": ""})
	asked := in.OnTerminalIn(t, dir, nil, "create", "demo")
	asked.Types("y\ny\n") // agbox starts a daemon before it asks
	asked.Await("[y/N] ")
	screen := asked.Screen()
	_, question, _ := strings.Cut(screen, "requests access")
	rows := strings.Split(question, "\n")
	if len(rows) > 24 || !strings.Contains(rows[2], "! mount") || !strings.Contains(screen, " more, 0 of them dangerous") {
		t.Errorf("the question has %d rows:\n%s", len(rows), screen)
	}
	asked.Types("all\n")
	asked.Await("leads to port 80/tcp")
	harness.Eventually(t, "the question stands there again", func() bool { return strings.Count(asked.Screen(), "[y/N] ") == 2 })
	asked.Types("n\n")
	if code := asked.Wait(); code == 0 {
		t.Error("keys that were typed before are an answer")
	}
	if got := in.Must(t, "ls", "--deleted", "-q"); got != "" {
		t.Errorf("there are sandboxes: %s", got)
	}
}

func TestNothingIsRequestedBeforeTheQuestion(t *testing.T) {
	t.Parallel()
	Row(t, 115, "a repository names features, images and builds at a port of this machine")
	in := harness.New(t)
	var asked atomic.Int32
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(listener.Close)
	host := strings.TrimPrefix(listener.URL, "http://")
	none := func(what string) {
		t.Helper()
		if n := asked.Load(); n > 0 {
			t.Fatalf("%s: the port was asked %d times", what, n)
		}
	}
	for name, files := range map[string]map[string]string{
		"feature": {".devcontainer.json": `{"image": "` + harness.ImageBusybox + `", "features": {"` + host + `/f/x:1": {}}}`},
		"behind a local one": {
			".devcontainer.json":          `{"image": "` + harness.ImageBusybox + `", "features": {"./f": {}}}`,
			"f/devcontainer-feature.json": `{"id": "f", "dependsOn": {"` + host + `/f/x:1": {}}}`, "f/install.sh": "",
		},
		"build":            {"agbox.yaml": "build: {dockerfile_inline: \"FROM " + host + "/x\"}\n"},
		"image":            {"agbox.yaml": "image: " + host + "/x\n"},
		"image of compose": {"compose.yaml": "services: {web: {image: " + host + "/x}}\n"},
		"service":          {"agbox.yaml": "image: " + harness.ImageBusybox + "\nservices: [{name: db, image: " + host + "/x}]\n"},
	} {
		dir := write(t, in, "project", files)
		for _, args := range [][]string{{"up"}, {"build"}, {"config", "show"}} {
			if _, is := files[".devcontainer.json"]; args[0] == "config" && is {
				args = append(args, "--devcontainer", ".devcontainer.json")
			}
			from(t, in, dir, args...)
			none(name + ", " + args[0])
		}
		shown := in.OnTerminalIn(t, dir, nil, "up")
		shown.Await("[y/N] ")
		none(name + ", while the question stands there")
		if code := answered(shown, "[y/N] ", "n"); code == 0 {
			t.Errorf("%s: no is taken for yes", name)
		}
		none(name + ", after no")
		if name == "feature" { // the listener would be seen
			shown = in.OnTerminalIn(t, dir, nil, "up")
			if code := answered(shown, "[y/N] ", "y"); code != 3 || asked.Swap(0) == 0 {
				t.Errorf("yes gives %d, and the port is not asked: %s", code, shown.Screen())
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnImageOfAFileIsFetchedAfterTheQuestion(t *testing.T) {
	t.Parallel()
	Row(t, 115, "a repository names an image at a registry of its own, and asks for nothing else")
	proxy, in := behindProxy(t)
	pulls := func() (n int) {
		for _, r := range proxy.Requests() {
			if strings.HasPrefix(r, "POST /images/create") {
				n++
			}
		}
		return n
	}
	const image = "registry.example.test/none:1"
	for name, files := range map[string]map[string]string{
		"image":   {"agbox.yaml": "image: " + image + "\n"},
		"always":  {"agbox.yaml": "image: " + image + "\npull_policy: always\n"},
		"compose": {"compose.yaml": "services: {web: {image: " + image + "}}\n"},
		"service": {"agbox.yaml": "image: " + harness.ImageBusybox + "\nservices: [{name: db, image: " + image + "}]\n"},
	} {
		dir := write(t, in, name, files)
		const line = image + ", which the engine fetches from registry.example.test"
		if r := from(t, in, dir, "up").Want(t, 2); !strings.Contains(r.Stderr, line) {
			t.Errorf("%s, without a terminal: %s", name, r.Stderr)
		}
		asked := in.OnTerminalIn(t, dir, nil, "up")
		asked.Await("[y/N] ")
		asked.Types("n\n")
		if code := asked.Wait(); code == 0 || !strings.Contains(asked.Screen(), line) {
			t.Errorf("%s: no gives %d: %s", name, code, asked.Screen())
		}
		if n := pulls(); n > 0 {
			t.Fatalf("%s: the engine was asked to fetch %d times", name, n)
		}
	}
	asked := in.OnTerminalIn(t, write(t, in, "yes", map[string]string{"agbox.yaml": "image: " + image + "\n"}), nil, "up")
	asked.Await("[y/N] ")
	asked.Types("y\n")
	if code := asked.Wait(); code == 0 || pulls() == 0 {
		t.Errorf("yes gives %d, after %d pulls", code, pulls())
	}
	// An image that is here is asked about nowhere.
	from(t, in, write(t, in, "here", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\n"}), "up").Want(t, 0)
}

func TestTheReviewThatARefusalNamesIsEnough(t *testing.T) {
	t.Parallel()
	Row(t, 1, "the remedy of a refusal, for each kind of file")
	in := harness.New(t)
	for name, files := range map[string]map[string]string{
		"agbox":        {"agbox.yaml": "image: " + harness.ImageBusybox + "\nports: [80]\n"},
		"compose":      {"compose.yaml": "services: {web: {image: " + harness.ImageBusybox + ", ports: [\"80\"], command: sleep 1000}}\n"},
		"devcontainer": {".devcontainer/devcontainer.json": `{"image": "` + harness.ImageBusybox + `", "appPort": [80]}`},
	} {
		dir := write(t, in, name, files)
		refused := from(t, in, dir, "up").Want(t, 2)
		_, after, _ := strings.Cut(refused.Stderr, "`agbox trust review ")
		file, _, ok := strings.Cut(after, "`")
		if !ok {
			t.Fatalf("%s: no remedy is named: %s", name, refused.Stderr)
		}
		review := in.OnTerminalIn(t, "/", nil, "trust", "review", file)
		if code := answered(review, "[y/N] ", "y"); code != 0 {
			t.Errorf("%s: review gives %d: %s", name, code, review.Screen())
		}
		from(t, in, dir, "up").Want(t, 0)
	}
}

func TestAUlimitThatRulesTheHostIsAskedAbout(t *testing.T) {
	t.Parallel()
	Row(t, 122, "a sandbox file, or a service of it, takes ulimits of the scheduler and of locked memory")
	in := harness.New(t)
	dir := write(t, in, "project", map[string]string{
		"agbox.yaml": "image: " + harness.ImageBusybox + "\nulimits: [rtprio=99, \"memlock=-1\", nofile=64]\n" +
			"services: [{name: s, image: " + harness.ImageBusybox + ", command: [sleep, infinity], ulimits: [nice=40]}]\n",
	})
	r := from(t, in, dir, "create", "demo")
	if r.Code != 2 || strings.Contains(r.Stderr, "nofile") {
		t.Errorf("create gives %d: %s", r.Code, r.Stderr)
	}
	for _, want := range []string{" ! limit     ulimit rtprio 99: its programs may run before all others", " ! limit     ulimit memlock -1: ", " ! limit     service s: ulimit nice 40: "} {
		if !strings.Contains(r.Stderr, want) {
			t.Errorf("%q is not asked about:\n%s", want, r.Stderr)
		}
	}
	if left := in.Must(t, "ls", "-aq"); left != "" {
		t.Errorf("there is the sandbox %s", left)
	}
}
