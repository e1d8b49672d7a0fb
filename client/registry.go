// This file fetches features of development containers from registries of OCI artifacts, and
// keeps them by their digest. A registry that was reached once is not asked again for the same
// reference.

package client

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/agbox/agbox/spec/feature"
	"github.com/agbox/agbox/workspace/archive"
)

// maxManifest and maxLayer bound what is fetched, in bytes.
const (
	maxManifest = 4 << 20
	maxLayer    = 64 << 20
)

// answerBound is how long a registry may take to begin an answer.
const answerBound = 20 * time.Second

// featureStore keeps features that were fetched.
type featureStore struct {
	// dir is the folder of the store. Only its owner may write to it.
	dir string
	// refresh asks the registry although the reference was fetched before.
	refresh bool
}

// fetch returns the folder with a feature, and the digest of its manifest. The reference is
// one of a registry (feature.KindOf). Errors are clauses for people.
func (s featureStore) fetch(ctx context.Context, reference string) (folder, digest string, err error) {
	if digest := s.known(reference); digest != "" {
		if folder := s.folder(digest); isFeature(folder) {
			return folder, digest, nil
		}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", "", err
	}
	from, err := repository(reference)
	if err != nil {
		return "", "", err
	}
	described, reader, err := from.FetchReference(ctx, from.Reference.Reference)
	if err != nil {
		return "", "", err
	}
	manifest, err := readAll(reader, described, maxManifest)
	if err != nil {
		return "", "", err
	}
	digest = described.Digest.String()
	if folder = s.folder(digest); !isFeature(folder) {
		if err := s.unpack(ctx, from, manifest, folder); err != nil {
			return "", "", err
		}
	}
	return folder, digest, s.remember(reference, digest)
}

// noSuchFeature reports whether an error of fetch means that the registry has no such feature.
func noSuchFeature(err error) bool { return errors.Is(err, errdef.ErrNotFound) }

// has reports whether a reference was fetched before.
func (s featureStore) has(reference string) bool {
	s.refresh = false
	digest := s.known(reference)
	return digest != "" && isFeature(s.folder(digest))
}

// repository is where a reference leads. A registry on this machine is asked without TLS,
// as other tools do.
func repository(reference string) (*remote.Repository, error) {
	from, err := remote.NewRepository(reference)
	if err != nil {
		return nil, err
	}
	if from.Reference.Reference == "" {
		from.Reference.Reference = "latest"
	}
	host, _, _ := strings.Cut(from.Reference.Registry, ":")
	ip := net.ParseIP(host)
	from.PlainHTTP = host == "localhost" || ip != nil && ip.IsLoopback()
	transport, _ := http.DefaultTransport.(*http.Transport)
	transport = transport.Clone()
	transport.ResponseHeaderTimeout = answerBound
	from.Client = &auth.Client{Client: &http.Client{Transport: transport}, Cache: auth.NewCache(), Credential: logins()}
	return from, nil
}

// logins are those of the caller's Docker; none if there are no usable ones.
func logins() auth.CredentialFunc {
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil
	}
	return credentials.Credential(store)
}

// readAll reads content and checks its size and digest.
func readAll(from io.ReadCloser, described ocispec.Descriptor, most int64) ([]byte, error) {
	defer from.Close() // only read
	if described.Size > most {
		return nil, fmt.Errorf("it has %d bytes, and at most %d are read", described.Size, most)
	}
	return content.ReadAll(from, described)
}

// unpack fetches the files of a manifest into a new folder.
func (s featureStore) unpack(ctx context.Context, from *remote.Repository, manifest []byte, folder string) error {
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil || len(m.Layers) != 1 {
		return errors.New("it is no feature: a feature is a manifest with one layer")
	}
	reader, err := from.Blobs().Fetch(ctx, m.Layers[0])
	if err != nil {
		return err
	}
	layer, err := readAll(reader, m.Layers[0], maxLayer)
	if err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(s.dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh) // moved away if all went well
	if err := extract(ctx, layer, fresh); err != nil {
		return err
	}
	if !isFeature(fresh) {
		return fmt.Errorf("it is no feature: it has no %s", feature.FileName)
	}
	// Another command may have been faster.
	if err := os.Rename(fresh, folder); err != nil && !isFeature(folder) {
		return err
	}
	return nil
}

func extract(ctx context.Context, layer []byte, folder string) error {
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer dir.Close() // only used to make files in it
	in, err := uncompressed(layer)
	if err != nil {
		return err
	}
	_, err = archive.Unpack(ctx, in, int(dir.Fd()), archive.UnpackOptions{Special: archive.SkipSpecial})
	return err
}

// isFeature reports whether a folder has the description of a feature.
func isFeature(folder string) bool {
	st, err := os.Lstat(filepath.Join(folder, feature.FileName))
	return err == nil && st.Mode().IsRegular()
}

var digestPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^sha256:[0-9a-f]{64}$`) })

// folder is where the feature with a digest is.
func (s featureStore) folder(digest string) string {
	return filepath.Join(s.dir, strings.ReplaceAll(digest, ":", "-"))
}

// known returns the digest of a reference that was fetched before, or that has it.
func (s featureStore) known(reference string) string {
	if _, digest, ok := strings.Cut(reference, "@"); ok {
		return digest
	}
	if s.refresh {
		return ""
	}
	text, err := os.ReadFile(s.referenceFile(reference))
	if err != nil || !digestPattern().Match(text) {
		return ""
	}
	return string(text)
}

// remember keeps the digest of a reference.
func (s featureStore) remember(reference, digest string) error {
	if !digestPattern().MatchString(digest) {
		return fmt.Errorf("its digest %.80q is of a kind that is not read", digest)
	}
	file, err := os.CreateTemp(s.dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = file.WriteString(digest)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), s.referenceFile(reference))
	}
	if err != nil {
		if gone := os.Remove(file.Name()); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

func (s featureStore) referenceFile(reference string) string {
	sum := sha256.Sum256([]byte(reference))
	return filepath.Join(s.dir, "reference-"+hex.EncodeToString(sum[:]))
}

// maxUnpacked bounds the files of a feature, in bytes.
const maxUnpacked = 256 << 20

// uncompressed returns the archive in a layer. The name of a layer says nothing about its
// compression, so its first bytes do.
func uncompressed(layer []byte) (io.Reader, error) {
	var in io.Reader = bytes.NewReader(layer)
	if bytes.HasPrefix(layer, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = unzipped
	}
	return &bounded{in: in, left: maxUnpacked}, nil
}

// bounded fails when more is read than a feature may have.
type bounded struct {
	in   io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errors.New("its files are too large")
	}
	return n, err
}
