package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

// featureRegistry serves one feature as f/greet:1, and returns its host.
func featureRegistry(t *testing.T, files map[string]string) string {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: "./" + name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	digest := func(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": map[string]any{"mediaType": "application/vnd.devcontainers", "digest": digest(nil), "size": 0},
		"layers": []map[string]any{{"mediaType": "application/vnd.devcontainers.layer.v1+tar", "digest": digest(layer.Bytes()), "size": layer.Len()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v2/f/greet/manifests/1":
			w.Header().Set("Content-Type", manifestType)
			w.Header().Set("Docker-Content-Digest", digest(manifest))
			_, _ = w.Write(manifest)
		case "/v2/f/greet/blobs/" + digest(layer.Bytes()):
			_, _ = w.Write(layer.Bytes())
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestFeaturesOfFoldersAndRegistriesAreInTheSandbox(t *testing.T) {
	t.Parallel()
	who := strings.ToLower(ids.New())
	removeBuilt(t, who)
	host := featureRegistry(t, map[string]string{
		"devcontainer-feature.json": `{"id": "greet", "options": {"word": {"type": "string", "default": "hello"}}, "dependsOn": {"./local": {}}, "entrypoint": "/start"}`,
		"install.sh": `set -e
cat /local
printf '%s %s\n' "$WORD" "$_REMOTE_USER_HOME" >/greeting
printf '#!/bin/sh\ntouch /tmp/started\nexec "$@"\n' >/start
chmod +x /start
`,
	})
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{
		".devcontainer/devcontainer.json": `{"build": {"dockerfile": "Dockerfile"}, "remoteUser": "agent", "workspaceMount": "",
  "features": {"` + host + `/f/greet:1": {"word": "it's me"}}}`,
		".devcontainer/Dockerfile":                      "FROM " + harness.ImageUser + "\nLABEL who=" + who + "\n",
		".devcontainer/local/devcontainer-feature.json": `{"id": "local", "containerEnv": {"LOCAL": "${IMAGE_ENV}-x", "PATH": "/local-bin:${PATH}"}}`,
		".devcontainer/local/install.sh":                "echo \"$LOCAL\" >/local\n",
	})
	file := filepath.Join(dir, ".devcontainer/devcontainer.json")
	// Before anything is fetched, a person must agree to that.
	if unfetched := in.Agbox(t, "create", "--devcontainer", file).Want(t, 2); !strings.Contains(unfetched.Stderr, "! feature   "+host+"/f/greet:1, which is fetched from its registry first") {
		t.Errorf("the fetch is not asked about:\n%s", unfetched.Stderr)
	}
	in.Must(t, "config", "validate", "--trust", "--devcontainer", file)
	untrusted := in.Agbox(t, "create", "--devcontainer", file).Want(t, 2)
	for _, want := range []string{"feature   " + host + "/f/greet@sha256:", "feature   " + filepath.Join(dir, ".devcontainer/local"), "install.sh changes the image"} {
		if !strings.Contains(untrusted.Stderr, want) {
			t.Errorf("%q is not in what a person must agree to:\n%s", want, untrusted.Stderr)
		}
	}
	in.Must(t, "create", "one", "--trust", "--devcontainer", file)
	in.Agbox(t, "exec", "one", "--", "sh", "-c", `cat /greeting; id -un; echo $LOCAL; echo $PATH | cut -d: -f1; ls /tmp/.agbox-features 2>/dev/null; until [ -e /tmp/started ]; do sleep 0.1; done`).
		Want(t, 0).WantOutput(t, "it's me /home/agent\nagent\nfrom-image-x\n/local-bin\n", "")
	// Nothing is built or fetched again.
	in.Must(t, "create", "two", "--trust", "--devcontainer", file)
	if out := in.Must(t, "events", "two", "-o", "json"); !strings.Contains(out, "SANDBOX_READY") || strings.Contains(out, "Step ") {
		t.Errorf("the image was built again:\n%s", out)
	}

	missing := in.write(t, "missing", map[string]string{".devcontainer.json": `{"image": "` + harness.ImageBusybox + `", "features": {"` + host + `/f/none:1": {}}}`})
	if failed := in.Agbox(t, "create", "--trust", "--devcontainer", filepath.Join(missing, ".devcontainer.json")).Want(t, 3); !strings.Contains(failed.Stderr, "/f/none:1 cannot be fetched") || !strings.Contains(failed.Stderr, "name it ./FOLDER") {
		t.Errorf("a feature that is not there: %s", failed.Stderr)
	}
}
