package docker

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// testRegistry is a small registry on this host, which engines allow without TLS. It
// has one image of one layer under the name "box".
type testRegistry struct {
	*httptest.Server
	// hold, if set, delays the layer until the channel is closed.
	hold chan struct{}

	mu    sync.Mutex // guards pulls
	pulls map[string]int
}

const (
	registryUser, registryPassword = "ann", "s3cret-of-ann"
	bearerToken                    = "t0ken-of-ann"
)

// newRegistry starts a registry. With protection "" it serves everyone; with "basic"
// or "bearer" it requires the password or a token.
func newRegistry(t *testing.T, protection string) *testRegistry {
	t.Helper()
	layer := layerOf(t, ids.New())
	config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","config":{"Cmd":["from-registry"]},"rootfs":{"type":"layers","diff_ids":[%q]}}`, digest(layer))
	const manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,
		"config":{"mediaType":"application/vnd.docker.container.image.v1+json","size":%d,"digest":%q},
		"layers":[{"mediaType":"application/vnd.docker.image.rootfs.diff.tar","size":%d,"digest":%q}]}`,
		manifestType, len(config), digest(config), len(layer), digest(layer))
	r := &testRegistry{pulls: make(map[string]int)}
	mux := http.NewServeMux()
	r.Server = httptest.NewServer(mux)
	t.Cleanup(r.Close)
	mux.HandleFunc("/token", func(w http.ResponseWriter, req *http.Request) {
		user, password, _ := req.BasicAuth()
		_ = req.ParseForm()
		if (user != registryUser || password != registryPassword) && req.Form.Get("refresh_token") != bearerToken {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, `{"token":%q,"access_token":%q}`, bearerToken, bearerToken)
	})
	mux.HandleFunc("/v2/", func(w http.ResponseWriter, req *http.Request) {
		if !r.authorized(w, req, protection) {
			return
		}
		r.mu.Lock()
		r.pulls[req.Method+" "+req.URL.Path]++
		r.mu.Unlock()
		switch rest := strings.TrimPrefix(req.URL.Path, "/v2/"); {
		case rest == "":
		case strings.HasPrefix(rest, "box/manifests/"):
			w.Header().Set("Content-Type", manifestType)
			w.Header().Set("Docker-Content-Digest", digest(manifest))
			_, _ = w.Write(manifest)
		case rest == "box/blobs/"+digest(config):
			_, _ = w.Write(config)
		case rest == "box/blobs/"+digest(layer):
			if r.hold != nil {
				select {
				case <-r.hold:
				case <-req.Context().Done():
				}
			}
			_, _ = w.Write(layer)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, `{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known to registry"}]}`)
		}
	})
	return r
}

func (r *testRegistry) authorized(w http.ResponseWriter, req *http.Request, protection string) bool {
	user, password, _ := req.BasicAuth()
	switch protection {
	case "basic":
		if user == registryUser && password == registryPassword {
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="box"`)
	case "bearer":
		if req.Header.Get("Authorization") == "Bearer "+bearerToken {
			return true
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="box",scope="repository:box:pull"`, r.URL))
	default:
		return true
	}
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
	return false
}

// host is the prefix of the registry's image names.
func (r *testRegistry) host() string { return strings.TrimPrefix(r.URL, "http://") }

// ref returns the reference of the image. It removes the image from the engine at the
// end of the test.
func (r *testRegistry) ref(t *testing.T) string {
	t.Helper()
	ref := r.host() + "/box:1"
	t.Cleanup(func() {
		e, err := New(Options{})
		must(t, err)
		if found, err := e.localImage(cleanupContext(t), ref); err == nil {
			removeImage(t, found.ID)
		}
		must(t, e.Close())
	})
	return ref
}

func (r *testRegistry) count(path string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for key, count := range r.pulls {
		if strings.Contains(key, path) {
			n += count
		}
	}
	return n
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func layerOf(t *testing.T, content string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	must(t, w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: int64(len(content))}))
	_, err := w.Write([]byte(content))
	must(t, err)
	must(t, w.Close())
	return out.Bytes()
}

// configured returns an engine with the given Docker configuration.
func configured(t *testing.T, config any) *Engine {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(config)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
	e, err := New(Options{ConfigDir: dir})
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	return e
}

// putHelper adds a credential helper to the PATH.
func putHelper(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "docker-credential-"+name), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestTheOutputOfACredentialHelperIsBounded(t *testing.T) {
	putHelper(t, "endless", "while :; do printf '%01000d' 0; done")
	if _, err := askHelper(t.Context(), "endless", "registry.example.org"); err == nil || err.Error() != "failed" {
		t.Errorf("it says %v", err)
	}
}

func TestCredentialsAreThoseOfTheDockerCommand(t *testing.T) {
	putHelper(t, "good", fmt.Sprintf(`[ "$1" = get ] && read key; case "$key" in 127.*) echo '{"ServerURL":"'$key'","Username":%q,"Secret":%q}';; *) echo "credentials not found in native keychain"; exit 1;; esac`, registryUser, registryPassword))
	putHelper(t, "token", fmt.Sprintf(`echo '{"Username":"<token>","Secret":%q}'`, bearerToken))
	plain := base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + registryPassword))
	type m = map[string]any
	for name, c := range map[string]struct {
		protection string
		config     func(host string) m
	}{
		"nothing, where nothing is needed":             {"", func(string) m { return m{} }},
		"auth for the host":                            {"basic", func(host string) m { return m{"auths": m{host: m{"auth": plain}}} }},
		"auth for the host as a URL":                   {"basic", func(host string) m { return m{"auths": m{"http://" + host + "/v1/": m{"auth": plain}}} }},
		"auth for tokens":                              {"bearer", func(host string) m { return m{"auths": m{host: m{"auth": plain}}} }},
		"an identity token":                            {"bearer", func(host string) m { return m{"auths": m{host: m{"identitytoken": bearerToken}}} }},
		"a helper for the host":                        {"basic", func(host string) m { return m{"credHelpers": m{host: "good"}} }},
		"a helper for all":                             {"bearer", func(host string) m { return m{"auths": m{host: m{}}, "credsStore": "good"} }},
		"a helper with a token":                        {"bearer", func(host string) m { return m{"credsStore": "token"} }},
		"a helper that is missing, and nothing needed": {"", func(string) m { return m{"credsStore": "not-there"} }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, c.protection)
			image, err := configured(t, c.config(r.host())).EnsureImage(t.Context(), runtime.ImageRequest{Ref: r.ref(t)}, nil)
			must(t, err)
			if len(image.Cmd) != 1 || image.Cmd[0] != "from-registry" {
				t.Errorf("the image is %+v", image)
			}
		})
	}
}

func TestRefusedCredentialsAreExplainedAndNeverShown(t *testing.T) {
	putHelper(t, "failing", "echo "+registryPassword+"; exit 1")
	type m = map[string]any
	wrong := base64.StdEncoding.EncodeToString([]byte(registryUser + ":wrong-secret"))
	for name, c := range map[string]struct {
		config func(host string) m
		says   string
	}{
		"none":                  {func(string) m { return m{} }, "docker login"},
		"wrong ones":            {func(host string) m { return m{"auths": m{host: m{"auth": wrong}}} }, "docker login"},
		"a missing helper":      {func(string) m { return m{"credsStore": "not-there"} }, "docker-credential-not-there of the Docker configuration is not installed"},
		"a helper that fails":   {func(string) m { return m{"credsStore": "failing"} }, "docker-credential-failing of the Docker configuration failed"},
		"a helper as a path":    {func(string) m { return m{"credsStore": "../../bin/sh"} }, "has an invalid name"},
		"credentials elsewhere": {func(string) m { return m{"auths": m{"other.example.org": m{"auth": wrong}}} }, "docker login"},
	} {
		for _, protection := range []string{"basic", "bearer"} {
			t.Run(name+", "+protection, func(t *testing.T) {
				r := newRegistry(t, protection)
				ref := r.ref(t)
				_, err := configured(t, c.config(r.host())).EnsureImage(t.Context(), runtime.ImageRequest{Ref: ref}, nil)
				wantFault(t, err, errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, c.says)
				told := fmt.Sprintf("%v %v", err, fault.Cause(err))
				for _, secret := range []string{registryPassword, "wrong-secret", wrong, bearerToken} {
					if strings.Contains(told, secret) {
						t.Errorf("the error shows a secret: %s", told)
					}
				}
			})
		}
	}
}

func TestADamagedConfigurationIsReportedWhenCredentialsAreNeeded(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths": "`+registryPassword), 0o600))
	e, err := New(Options{ConfigDir: dir})
	must(t, err)
	defer func() { must(t, e.Close()) }()
	open, closed := newRegistry(t, ""), newRegistry(t, "basic")
	_, err = e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: open.ref(t)}, nil)
	must(t, err)
	_, err = e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: closed.ref(t)}, nil)
	wantFault(t, err, errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, filepath.Join(dir, "config.json"))
}

func TestThePullPolicyDecidesWhetherTheRegistryIsContacted(t *testing.T) {
	r := newRegistry(t, "")
	e := configured(t, map[string]any{})
	ref := r.ref(t)
	_, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: ref, Policy: runtime.PullNever}, nil)
	wantFault(t, err, errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, "agbox image pull")
	if n := r.count(""); n != 0 {
		t.Errorf("under never the registry was asked %d times", n)
	}
	for _, c := range []struct {
		policy runtime.PullPolicy
		asks   bool
	}{{runtime.PullIfMissing, true}, {runtime.PullIfMissing, false}, {runtime.PullNever, false}, {runtime.PullAlways, true}} {
		before := r.count("/manifests/")
		_, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: ref, Policy: c.policy}, nil)
		must(t, err)
		if asked := r.count("/manifests/") > before; asked != c.asks {
			t.Errorf("under policy %d the registry was asked: %v", c.policy, asked)
		}
	}
	_, err = e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: ref, Platform: "linux/s390x"}, nil)
	if !errdefs.IsNotFound(err) {
		t.Errorf("an image for another platform: %v", err)
	}
	_, err = e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: r.host() + "/no-such:1"}, nil)
	wantFault(t, err, errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, "/no-such:1")
}

func TestConcurrentRequestsForAnImageShareOnePull(t *testing.T) {
	r := newRegistry(t, "")
	r.hold = make(chan struct{})
	e := configured(t, map[string]any{})
	ref := r.ref(t)
	var waiting sync.WaitGroup
	for range 50 {
		waiting.Go(func() {
			if _, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: ref}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	for e.pulls.Waiting() != 50 {
		time.Sleep(time.Millisecond)
	}
	close(r.hold)
	waiting.Wait()
	if n := r.count("/manifests/"); n > 2 { // an engine may send a HEAD request first
		t.Errorf("50 waiters made %d requests of the manifest", n)
	}
}
