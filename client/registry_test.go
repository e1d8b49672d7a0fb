package client

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// servedFeature is a registry with one artifact, f/tool:1.
type servedFeature struct {
	host, digest string
	requests     atomic.Int32
}

// blob is content by its digest.
func blob(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// serveFeature serves an artifact whose layer is given. altered is served in its place.
func serveFeature(t *testing.T, layer, altered []byte) *servedFeature {
	t.Helper()
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": map[string]any{"mediaType": "application/vnd.devcontainers", "digest": blob(nil), "size": 0},
		"layers": []map[string]any{{"mediaType": "application/vnd.devcontainers.layer.v1+tar", "digest": blob(layer), "size": len(layer)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &servedFeature{digest: blob(manifest)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		switch r.URL.Path {
		case "/v2/f/tool/manifests/1", "/v2/f/tool/manifests/" + s.digest:
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", s.digest)
			_, _ = w.Write(manifest)
		case "/v2/f/tool/blobs/" + blob(layer):
			_, _ = w.Write(altered)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	s.host = strings.TrimPrefix(server.URL, "http://")
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	return s
}

// layerOf is an archive of files.
func layerOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tool(t *testing.T) []byte {
	t.Helper()
	return layerOf(t, map[string]string{"./devcontainer-feature.json": `{"id": "tool"}`, "./install.sh": "echo tool\n"})
}

func TestAFeatureIsFetchedOnceAndKept(t *testing.T) {
	s := serveFeature(t, tool(t), tool(t))
	store := featureStore{dir: filepath.Join(t.TempDir(), "features")}
	folder, digest, err := store.fetch(t.Context(), s.host+"/f/tool:1")
	if err != nil || digest != s.digest {
		t.Fatalf("%s, %v; want the digest %s", digest, err, s.digest)
	}
	if text, err := os.ReadFile(filepath.Join(folder, "install.sh")); err != nil || string(text) != "echo tool\n" {
		t.Errorf("install.sh is %q (%v)", text, err)
	}
	before := s.requests.Load()
	for _, reference := range []string{"/f/tool:1", "/f/tool@" + s.digest, "/f/tool:1@" + s.digest} {
		if again, _, err := store.fetch(t.Context(), s.host+reference); err != nil || again != folder {
			t.Errorf("%s is in %s (%v), want %s", reference, again, err, folder)
		}
	}
	if n := s.requests.Load() - before; n != 0 {
		t.Errorf("what is here was asked for %d times", n)
	}
	store.refresh = true
	if _, _, err := store.fetch(t.Context(), s.host+"/f/tool:1"); err != nil || s.requests.Load() == before {
		t.Errorf("the registry was not asked again (%v)", err)
	}
}

func TestACompressedFeatureIsRead(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(tool(t))
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := serveFeature(t, b.Bytes(), b.Bytes())
	if _, _, err := (featureStore{dir: t.TempDir()}).fetch(t.Context(), s.host+"/f/tool:1"); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNoFeatureLeavesNothingBehind(t *testing.T) {
	for name, c := range map[string]struct {
		layer, altered []byte
		reference      string
	}{
		"another artifact":     {layerOf(t, map[string]string{"README": "x"}), nil, "/f/tool:1"},
		"a path outside":       {layerOf(t, map[string]string{"../evil": "x", "devcontainer-feature.json": "{}"}), nil, "/f/tool:1"},
		"other content":        {tool(t), layerOf(t, map[string]string{"./devcontainer-feature.json": `{"id": "evil"}`, "./install.sh": "echo evil\n"}), "/f/tool:1"},
		"an unknown version":   {tool(t), nil, "/f/tool:2"},
		"an unknown feature":   {tool(t), nil, "/f/other:1"},
		"an unreadable layer":  {[]byte("no archive"), nil, "/f/tool:1"},
		"a digest that is not": {tool(t), nil, "/f/tool@sha256:" + strings.Repeat("0", 64)},
	} {
		altered := c.altered
		if altered == nil {
			altered = c.layer
		}
		s := serveFeature(t, c.layer, altered)
		dir := t.TempDir()
		folder, _, err := (featureStore{dir: dir}).fetch(t.Context(), s.host+c.reference)
		if err == nil {
			t.Errorf("%s was fetched to %s", name, folder)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s left %v (%v)", name, left, err)
		}
	}
}

func TestARegistryThatIsAwayIsAnError(t *testing.T) {
	s := httptest.NewServer(nil)
	host := strings.TrimPrefix(s.URL, "http://")
	s.Close()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	if _, _, err := (featureStore{dir: t.TempDir()}).fetch(t.Context(), host+"/f/tool:1"); err == nil {
		t.Error("the feature was fetched")
	}
}
