package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/projections"
	"github.com/agbox/agbox/spec/document"
)

// ResolveSpec returns the spec that CreateSandbox would store for a request, or all
// problems of the request. It changes nothing.
func (c *Client) ResolveSpec(ctx context.Context, in *agboxv1.CreateSandboxRequest) (*agboxv1.ResolveSpecResponse, error) {
	return unary(withRestart(ctx), c, agboxv1.SandboxServiceClient.ResolveSpec, &agboxv1.ResolveSpecRequest{Create: in}, idempotent)
}

// SpecFiles are files on this machine that describe a sandbox.
type SpecFiles struct {
	// File is the sandbox file (agbox.yaml), or empty. Its base files are also read.
	File string
	// Bases come between those and the sandbox file. Each overrides those before it.
	Bases []SpecBase
	// LookupEnv looks up the variables that the files name; nil means os.LookupEnv.
	// Besides these, the request has only variables that built-in tools use to find their
	// files.
	LookupEnv func(string) (string, bool)
	// Profiles are the profiles of compose files that are wanted, instead of those that
	// the variable COMPOSE_PROFILES has.
	Profiles []string
	// Refresh asks registries for features that were fetched before.
	Refresh bool
}

// SpecBase is a file of another tool.
type SpecBase struct {
	File string
	// Format is UNSPECIFIED if the name of the file determines it.
	Format agboxv1.ConfigFormat
	// Primary is the service of a compose file that becomes the primary.
	Primary string
}

// SpecInput is the result of reading SpecFiles.
type SpecInput struct {
	// Request is for CreateSandbox and ResolveSpec.
	Request *agboxv1.CreateSandboxRequest
	// Files are all files that were read, including those with variables, in reading
	// order.
	Files []SpecSource
	// Variables are the names of the caller's own variables whose values are sent,
	// sorted.
	Variables []string
}

// SpecSource is a file that was read.
type SpecSource struct {
	// Path is absolute, or "-" for standard input.
	Path    string
	Content []byte
	// Secret means that the content must not be shown, because it has values of
	// variables.
	Secret bool
}

// Request is Load that returns only the request.
func (s SpecFiles) Request() (*agboxv1.CreateSandboxRequest, error) {
	in, err := s.Load()
	if err != nil {
		return nil, err
	}
	return in.Request, nil
}

// Load reads the files into a request for CreateSandbox and ResolveSpec. Its errors are
// ErrInvalid: a file is missing, too large or not a regular file, or a file names a base
// outside its own folder or through a symbolic link.
func (s SpecFiles) Load() (*SpecInput, error) {
	in := &SpecInput{Request: new(agboxv1.CreateSandboxRequest)}
	req := in.Request
	var err error
	if req.ConfigDir, err = os.Getwd(); err != nil {
		return nil, unreadable(".", err)
	}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		req.HomeDir = home
	}
	for _, name := range projections.Variables() {
		if value, ok := s.lookup()(name); ok && value != "" {
			if req.HostEnv == nil {
				req.HostEnv = make(map[string]string)
			}
			req.HostEnv[name] = value
		}
	}
	if s.File != "" {
		if err := s.loadFile(in); err != nil {
			return nil, err
		}
	}
	for _, b := range s.Bases {
		path, err := filepath.Abs(b.File)
		if err != nil {
			return nil, unreadable(b.File, err)
		}
		content, err := readSpec(path)
		if err != nil {
			return nil, err
		}
		if err := s.addBase(in, b, path, content); err != nil {
			return nil, err
		}
	}
	slices.Sort(in.Variables)
	in.Variables = slices.Compact(in.Variables)
	return in, nil
}

// loadFile reads the sandbox file and its base files.
func (s SpecFiles) loadFile(in *SpecInput) error {
	req := in.Request
	var err error
	if req.ConfigYaml, err = readSpec(s.File); err != nil {
		return err
	}
	path := absolute(req.ConfigDir, s.File)
	if s.File == "-" {
		path = s.File
	}
	in.Files = append(in.Files, SpecSource{Path: path, Content: req.ConfigYaml})
	req.ConfigPath = s.File
	if s.File != "-" {
		req.ConfigDir = filepath.Dir(path)
	}
	addDockerfiles(in, req.ConfigDir, filepath.Join(req.ConfigDir, "agbox.yaml"), agboxv1.ConfigFormat_CONFIG_FORMAT_AGBOX, req.ConfigYaml)
	for _, b := range document.Bases(req.ConfigYaml) {
		content, path, err := readBeside(req.ConfigDir, b.File)
		if err != nil {
			return err
		}
		if err := s.addBase(in, SpecBase{Format: b.Format, Primary: b.Primary}, path, content); err != nil {
			return err
		}
	}
	return nil
}

func (s SpecFiles) lookup() func(string) (string, bool) {
	if s.LookupEnv == nil {
		return os.LookupEnv
	}
	return s.LookupEnv
}

func absolute(dir, file string) string {
	if filepath.IsAbs(file) {
		return filepath.Clean(file)
	}
	return filepath.Join(dir, file)
}

// addBase adds a base file with the variables that it names.
func (s SpecFiles) addBase(in *SpecInput, b SpecBase, path string, content []byte) error {
	in.Files = append(in.Files, SpecSource{Path: path, Content: content})
	file := &agboxv1.ConfigFile{Path: path, Content: content, Format: cmp.Or(b.Format, document.FormatOf(path)), Primary: b.Primary}
	in.Request.BaseFiles = append(in.Request.BaseFiles, file)
	var err error
	if file.Variables, err = s.variables(in, file.GetFormat(), path, content); err != nil {
		return err
	}
	return s.addNamed(in, file)
}

// variables returns the values of the variables that a file names.
func (s SpecFiles) variables(in *SpecInput, format agboxv1.ConfigFormat, path string, content []byte) (map[string]string, error) {
	names := document.Variables(format, content)
	if len(names) == 0 {
		return nil, nil
	}
	var dotEnv map[string]string
	if format == agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE {
		text, from, err := readBeside(filepath.Dir(path), ".env")
		switch {
		case err == nil:
			in.Files = append(in.Files, SpecSource{Path: from, Content: text, Secret: true})
			dotEnv = document.EnvFile(text)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	values := make(map[string]string)
	for _, name := range names {
		if name == document.ProfilesVariable && len(s.Profiles) > 0 {
			values[name] = strings.Join(s.Profiles, ",")
			continue
		}
		// As in compose, the environment takes precedence over the file .env.
		if value, ok := s.lookup()(name); ok {
			values[name] = value
			in.Variables = append(in.Variables, name)
		} else if value, ok := dotEnv[name]; ok {
			values[name] = value
		}
	}
	return values, nil
}

// readSpec reads a file that the caller named; "-" means standard input.
func readSpec(path string) ([]byte, error) {
	if path == "-" {
		return specContent(os.Stdin, path)
	}
	// A checkout may contain a FIFO. Opening it must not wait for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer file.Close() // only read
	st, err := file.Stat()
	if err != nil {
		return nil, unreadable(path, err)
	}
	// A shell passes the output of a command as a FIFO below /dev/fd.
	if !st.Mode().IsRegular() && !strings.HasPrefix(path, "/dev/") {
		return nil, unreadable(path, errors.New("it is not a regular file"))
	}
	return specContent(file, path)
}

// readBeside reads a file that another file names, or that belongs to it. It reads only
// below that file's folder and follows no symbolic links, because the author of the other
// file must not be able to choose arbitrary files of this machine.
func readBeside(dir, name string) (content []byte, path string, err error) {
	path = absolute(dir, name)
	rel, err := filepath.Rel(dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, "", outside(path, dir)
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", unreadable(path, err)
	}
	defer unix.Close(root) // only used to open files
	fd, err := unix.Openat2(root, rel, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, "", unreadable(path, errors.New("it is, or lies behind, a symbolic link, and links are not followed here"))
	case errors.Is(err, unix.EXDEV):
		return nil, "", outside(path, dir)
	case err != nil:
		return nil, "", unreadable(path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close() // only read
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, "", unreadable(path, errors.New("it is not a regular file"))
	}
	content, err = specContent(file, path)
	return content, path, err
}

func outside(path, dir string) error {
	return &Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("The file %s lies outside %s, the folder of the file that names it, and is not read: give it by a flag, --compose or --devcontainer, or move it.", path, dir)}
}

func specContent(in io.Reader, path string) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(in, document.MaxBytes+1))
	switch {
	case err != nil:
		return nil, unreadable(path, err)
	case len(content) > document.MaxBytes:
		return nil, &Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("The file %s is larger than 1 MiB: name the file that describes the sandbox.", path)}
	case len(bytes.TrimSpace(content)) == 0:
		// An empty field would mean that there is no file.
		content = []byte("{}\n")
	}
	return content, nil
}

func unreadable(path string, cause error) error {
	why := cause
	var in *fs.PathError
	if errors.As(cause, &in) {
		why = in.Err
	}
	return &Error{Code: codes.InvalidArgument, cause: cause, Message: fmt.Sprintf("The file %s cannot be read: %v. Name one that can.", path, why)}
}
