package docker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"
	helpers "github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/client"
)

const (
	// helperTimeout bounds one run of a credential helper, which may query a keyring.
	helperTimeout = 10 * time.Second
	// maxCredentials bounds the bytes read from a configuration or a helper.
	maxCredentials = 1 << 20
)

// dockerConfig has the fields about credentials of the docker command's config.json.
// Its own reader, github.com/docker/cli/cli/config, is not used: it runs helpers
// without a limit of time, and one bad entry makes it refuse the whole file.
type dockerConfig struct {
	Auths       map[string]storedAuth `json:"auths"`
	CredsStore  string                `json:"credsStore"`
	CredHelpers map[string]string     `json:"credHelpers"`
}

type storedAuth struct {
	Auth          string `json:"auth"` // base64 of "user:password"
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// configDir is the directory of the docker command's configuration.
func (e *Engine) configDir() string {
	if e.config != "" {
		return e.config
	}
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker")
}

// readConfig reads the configuration. It does not cache it, because 'docker login'
// changes it. A missing file counts as empty.
func (e *Engine) readConfig() (dockerConfig, error) {
	var config dockerConfig
	dir := e.configDir()
	if dir == "" {
		return config, nil
	}
	file, err := os.Open(filepath.Join(dir, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return config, nil
	}
	if err != nil {
		return config, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, maxCredentials))
	if err == nil && len(bytes.TrimSpace(content)) > 0 && json.Unmarshal(content, &config) != nil {
		// The parser's message is withheld, because it might quote a secret.
		err = errors.New("it is not valid JSON of the docker command")
	}
	if err != nil {
		return dockerConfig{}, fmt.Errorf("%s: %w", file.Name(), err)
	}
	return config, nil
}

// pullAuth returns the credentials for the registry of an image, encoded for the
// engine's header; empty if there are none. As with the docker command, a failure
// to get credentials is no error, because the image may be public. trouble then
// describes the failure.
func (e *Engine) pullAuth(ctx context.Context, image reference.Named) (header, trouble string) {
	config, err := e.readConfig()
	if err != nil {
		return "", fmt.Sprintf("The Docker configuration cannot be read: %v.", err)
	}
	if len(config.Auths)+len(config.CredHelpers) == 0 && config.CredsStore == "" {
		return "", ""
	}
	auth, trouble := config.credentials(ctx, e.registryKey(ctx, reference.Domain(image)))
	if auth == (registry.AuthConfig{}) {
		return "", trouble
	}
	header, err = registry.EncodeAuthConfig(auth)
	if err != nil {
		return "", "The credentials in the Docker configuration cannot be encoded."
	}
	return header, ""
}

// registryKey returns the key of a registry in the configuration: its host, except
// for the default registry, whose key the engine reports.
func (e *Engine) registryKey(ctx context.Context, domain string) string {
	bare, err := reference.ParseNormalizedNamed("x")
	if err != nil || domain != reference.Domain(bare) {
		return domain
	}
	key := domain
	// If the engine does not answer, the following pull reports it.
	_ = e.call(ctx, "say which registry it uses", func(cli *client.Client) error {
		info, err := cli.Info(ctx)
		if err == nil && info.IndexServerAddress != "" {
			key = info.IndexServerAddress
		}
		return err
	})
	return key
}

// allAuths returns the credentials of all registries in the configuration. A build
// needs them all, because only the engine determines its base images.
func (e *Engine) allAuths(ctx context.Context) map[string]registry.AuthConfig {
	config, err := e.readConfig()
	if err != nil {
		return nil
	}
	keys := make(map[string]bool)
	for key := range config.Auths {
		keys[key] = true
	}
	for key := range config.CredHelpers {
		keys[key] = true
	}
	// One timeout for all: a helper that hangs usually hangs for each registry.
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	all := make(map[string]registry.AuthConfig)
	for key := range keys {
		if auth, _ := config.credentials(ctx, key); auth != (registry.AuthConfig{}) {
			all[key] = auth
		}
	}
	return all
}

// credentials looks up a registry: first in its own helper, or in the common one
// if it has none, then in the file.
func (c dockerConfig) credentials(ctx context.Context, key string) (auth registry.AuthConfig, trouble string) {
	helper := c.CredsStore
	if own, ok := c.CredHelpers[key]; ok {
		helper = own
	}
	if helper != "" {
		auth, err := askHelper(ctx, helper, key)
		if err == nil && auth != (registry.AuthConfig{}) {
			return auth, ""
		}
		if err != nil {
			trouble = fmt.Sprintf("The credential helper docker-credential-%s of the Docker configuration %v.", helper, err)
		}
	}
	stored, ok := c.Auths[key]
	if !ok {
		for name, entry := range c.Auths {
			if hostOf(name) == hostOf(key) {
				stored, ok = entry, true
				break
			}
		}
	}
	if !ok {
		return registry.AuthConfig{}, trouble
	}
	auth = registry.AuthConfig{
		Username: stored.Username, Password: stored.Password, ServerAddress: key,
		IdentityToken: stored.IdentityToken, RegistryToken: stored.RegistryToken,
	}
	if decoded, err := base64.StdEncoding.DecodeString(stored.Auth); err == nil && len(decoded) > 0 {
		user, password, _ := strings.Cut(strings.TrimRight(string(decoded), "\x00"), ":")
		auth.Username, auth.Password = user, password
	}
	if auth == (registry.AuthConfig{ServerAddress: key}) {
		return registry.AuthConfig{}, trouble // an empty entry: the helper has the secret
	}
	return auth, ""
}

// hostOf returns a registry's name without scheme and path.
func hostOf(key string) string {
	_, rest, found := strings.Cut(key, "://")
	if !found {
		rest = key
	}
	host, _, _ := strings.Cut(rest, "/")
	return host
}

// credentialText collects the output of a helper. It fails beyond maxCredentials.
type credentialText struct{ text []byte }

func (t *credentialText) Write(p []byte) (int, error) {
	if len(t.text)+len(p) > maxCredentials {
		return 0, errors.New("the output of the helper is too long")
	}
	t.text = append(t.text, p...)
	return len(p), nil
}

// tokenUser is the user name with which a helper marks its secret as a token.
const tokenUser = "<token>"

// helperRun is one run of a credential helper. It replaces the library's client.Shell,
// which waits without a limit and passes the helper's messages on to standard error,
// though they could contain a secret.
type helperRun struct {
	cmd *exec.Cmd
	err error // of the run itself; the library passes only its text on
}

func (r *helperRun) Input(in io.Reader) { r.cmd.Stdin = in }

func (r *helperRun) Output() ([]byte, error) {
	var answer credentialText
	r.cmd.Stdout = &answer
	r.err = r.cmd.Run()
	return answer.text, r.err
}

// askHelper runs a credential helper for one registry. Its error messages are
// withheld, because they could contain a secret. Missing credentials are no error.
func askHelper(ctx context.Context, name, key string) (registry.AuthConfig, error) {
	if name != filepath.Base(name) || name == "." || name == ".." {
		return registry.AuthConfig{}, errors.New("has an invalid name")
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	var run helperRun
	found, err := helpers.Get(func(args ...string) helpers.Program {
		run.cmd = exec.CommandContext(ctx, "docker-credential-"+name, args...)
		run.cmd.WaitDelay = time.Second
		return &run
	}, key)
	switch {
	case errors.Is(run.err, exec.ErrNotFound):
		return registry.AuthConfig{}, errors.New("is not installed in the PATH of agboxd")
	case ctx.Err() != nil:
		return registry.AuthConfig{}, errors.New("did not answer in time")
	case credentials.IsErrCredentialsNotFound(err):
		return registry.AuthConfig{}, nil
	case run.err != nil:
		return registry.AuthConfig{}, errors.New("failed")
	case err != nil:
		return registry.AuthConfig{}, errors.New("did not answer with JSON")
	case found.Username == tokenUser:
		return registry.AuthConfig{IdentityToken: found.Secret, ServerAddress: key}, nil
	}
	return registry.AuthConfig{Username: found.Username, Password: found.Secret, ServerAddress: key}, nil
}
