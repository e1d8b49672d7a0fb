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
	"strings"

	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/projections"
	"github.com/agbox/agbox/spec/document"
)

// ResolveSpec says what CreateSandbox would make of a request, or all that is
// wrong with it, and changes nothing.
func (c *Client) ResolveSpec(ctx context.Context, in *agboxv1.CreateSandboxRequest) (*agboxv1.ResolveSpecResponse, error) {
	return unary(ctx, c, agboxv1.SandboxServiceClient.ResolveSpec, &agboxv1.ResolveSpecRequest{Create: in}, idempotent)
}

// SpecFiles are files that describe a sandbox, on this machine.
type SpecFiles struct {
	// File is the sandbox file (agbox.yaml); empty for none. The files that it
	// names as its base are read too.
	File string
	// Bases come between those and the sandbox file, each overriding the ones
	// before it.
	Bases []SpecBase
	// LookupEnv gives the variables that the files name; os.LookupEnv when nil.
	// Beside them only those are sent by which built-in tools find their files.
	LookupEnv func(string) (string, bool)
}

// SpecBase is a file of another tool.
type SpecBase struct {
	File string
	// Format is UNSPECIFIED where the name of the file tells it.
	Format agboxv1.ConfigFormat
	// Primary is the service of a compose file that is the primary.
	Primary string
}

// Request reads the files into the request that CreateSandbox and ResolveSpec
// take. Errors are ErrInvalid: a file that is missing, too large or no file.
func (s SpecFiles) Request() (*agboxv1.CreateSandboxRequest, error) {
	req := new(agboxv1.CreateSandboxRequest)
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
	bases := s.Bases
	if s.File != "" {
		if req.ConfigYaml, err = readSpec(s.File); err != nil {
			return nil, err
		}
		req.ConfigPath, req.ConfigDir = s.File, filepath.Dir(absolute(req.ConfigDir, s.File))
		bases = nil
		for _, b := range document.Bases(req.ConfigYaml) {
			bases = append(bases, SpecBase{File: absolute(req.ConfigDir, b.File), Format: b.Format, Primary: b.Primary})
		}
		bases = append(bases, s.Bases...)
	}
	for _, b := range bases {
		file, err := s.base(b)
		if err != nil {
			return nil, err
		}
		req.BaseFiles = append(req.BaseFiles, file)
	}
	return req, nil
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

func (s SpecFiles) base(b SpecBase) (*agboxv1.ConfigFile, error) {
	path, err := filepath.Abs(b.File)
	if err != nil {
		return nil, unreadable(b.File, err)
	}
	content, err := readSpec(path)
	if err != nil {
		return nil, err
	}
	file := &agboxv1.ConfigFile{Path: path, Content: content, Format: cmp.Or(b.Format, document.FormatOf(path)), Primary: b.Primary}
	lookup := s.lookup()
	var dotEnv map[string]string
	if file.GetFormat() == agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE {
		dotEnv = readDotEnv(filepath.Join(filepath.Dir(path), ".env"))
	}
	file.Variables = make(map[string]string)
	for _, name := range document.Variables(file.GetFormat(), content) {
		// As compose has it, the environment wins over the file .env.
		value, ok := lookup(name)
		if !ok {
			value, ok = dotEnv[name]
		}
		if ok {
			file.Variables[name] = value
		}
	}
	return file, nil
}

// readSpec reads a file, "-" for standard input.
func readSpec(path string) ([]byte, error) {
	in := os.Stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, unreadable(path, err)
		}
		defer file.Close()
		in = file
	}
	content, err := io.ReadAll(io.LimitReader(in, document.MaxBytes+1))
	switch {
	case err != nil:
		return nil, unreadable(path, err)
	case len(content) > document.MaxBytes:
		return nil, &Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("The file %s is larger than 1 MiB, so it is hardly meant: name the file that describes the sandbox.", path)}
	case len(bytes.TrimSpace(content)) == 0:
		// An empty request field would say that there is no file.
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

// readDotEnv reads the file of variables beside a compose file; it need not be there.
func readDotEnv(path string) map[string]string {
	content, err := os.ReadFile(path)
	if err != nil || len(content) > document.MaxBytes {
		return nil
	}
	values := make(map[string]string)
	for line := range strings.Lines(string(content)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		} else {
			value, _, _ = strings.Cut(value, " #")
			value = strings.TrimSpace(value)
		}
		values[strings.TrimSpace(name)] = value
	}
	return values
}
