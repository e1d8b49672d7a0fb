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
	"time"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
	"github.com/agbox/agbox/spec/feature"
	"github.com/agbox/agbox/spec/projections"
)

// ResolveSpec returns the spec that CreateSandbox would store for a request, or all
// problems of the request. It changes nothing.
func (c *Client) ResolveSpec(ctx context.Context, in *agboxv1.CreateSandboxRequest) (*agboxv1.ResolveSpecResponse, error) {
	return c.sandboxes.ResolveSpec(ctx, &agboxv1.ResolveSpecRequest{Create: in}, idempotent)
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
	// MayFetch is called before any registry is asked for features that were never fetched
	// here, with what was read so far; an error ends Load. nil allows it.
	MayFetch func(read *SpecInput, references []string) error
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
// ErrInvalid: a file is missing, too large, not a regular file or a symbolic link out of
// its folder, or a file names a base outside its own folder.
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
	if err := addDockerfiles(in, req.ConfigDir, filepath.Join(req.ConfigDir, "agbox.yaml"), agboxv1.ConfigFormat_CONFIG_FORMAT_AGBOX, req.ConfigYaml); err != nil {
		return err
	}
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
		content, err := io.ReadAll(io.LimitReader(os.Stdin, document.MaxBytes+1))
		if err == nil && len(content) > document.MaxBytes {
			err = filesystem.ErrTooLarge
		}
		return specContent(content, path, err)
	}
	content, err := filesystem.ReadNamed(path, document.MaxBytes)
	return specContent(content, path, err)
}

// readBeside reads a file that another file names, or that belongs to it. It reads only
// below that file's folder, because the author of the other file must not be able to choose
// arbitrary files of this machine.
func readBeside(dir, name string) (content []byte, path string, err error) {
	path = absolute(dir, name)
	rel, err := filepath.Rel(dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, "", outside(path, dir)
	}
	content, err = filesystem.ReadWithin(dir, rel, document.MaxBytes)
	content, err = specContent(content, path, err)
	return content, path, err
}

func outside(path, dir string) error {
	return &Error{Code: codes.InvalidArgument, cause: filesystem.ErrOutside, Message: fmt.Sprintf("The file %s lies outside %s, the folder of the file that names it, and is not read: move it there, or take it out of that file and give it by a flag, --compose or --devcontainer.", path, dir)}
}

// specContent is what was read of a file, or the error for people.
func specContent(content []byte, path string, err error) ([]byte, error) {
	switch {
	case errors.Is(err, filesystem.ErrTooLarge):
		return nil, &Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("The file %s is larger than 1 MiB: name the file that describes the sandbox.", path)}
	case err != nil:
		return nil, unreadable(path, err)
	case len(bytes.TrimSpace(content)) == 0:
		// An empty field would mean that there is no file.
		content = []byte("{}\n")
	}
	return content, nil
}

func unreadable(path string, cause error) error {
	why := cause
	if in, ok := errors.AsType[*fs.PathError](cause); ok {
		why = in.Err
	}
	return &Error{Code: codes.InvalidArgument, cause: cause, Message: fmt.Sprintf("The file %s cannot be read: %v. Name one that can.", path, why)}
}

// maxNamed bounds the files that a file names, directly or not.
const maxNamed = 128

// addNamed adds the files that a base file names: compose files, files of variables and
// features. A missing one is left out, which the daemon reports with its line.
func (s SpecFiles) addNamed(in *SpecInput, file *agboxv1.ConfigFile) error {
	root := filepath.Dir(file.GetPath())
	if file.GetFormat() == agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER {
		root = document.ProjectOf(file.GetPath())
		if err := s.addFeatures(in, file); err != nil {
			return err
		}
	}
	return s.addNamedBy(in, file, root, file.GetPath(), file.GetFormat(), file.GetContent(), file.GetVariables())
}

// addDockerfiles adds the Dockerfiles that a file builds with to what a person agrees to: a
// change of one asks again. Missing ones, and those outside of root, are left to the daemon.
func addDockerfiles(in *SpecInput, root, path string, format agboxv1.ConfigFormat, content []byte) error {
	for _, name := range document.DockerfilesIn(format, content) {
		text, found, err := readBeside(root, absolute(filepath.Dir(path), name))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, filesystem.ErrOutside):
		case err != nil:
			return err
		default:
			in.Files = append(in.Files, SpecSource{Path: found, Content: text})
		}
	}
	return nil
}

// addNamedBy adds the files that one file names, and those that they name. All are below
// root.
func (s SpecFiles) addNamedBy(in *SpecInput, to *agboxv1.ConfigFile, root, path string, format agboxv1.ConfigFormat, content []byte, values map[string]string) error {
	if err := addDockerfiles(in, root, path, format, content); err != nil {
		return err
	}
	for _, n := range document.NamedIn(format, content, values) {
		if isAdded(to, absolute(filepath.Dir(path), n.Name)) {
			continue
		}
		content, found, err := readBeside(root, absolute(filepath.Dir(path), n.Name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case len(to.GetFiles()) == maxNamed:
			return &Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("The file %s names more than %d files, with those that they name: name fewer.", to.GetPath(), maxNamed)}
		}
		in.Files = append(in.Files, SpecSource{Path: found, Content: content, Secret: n.Secret})
		named := &agboxv1.NamedFile{Name: n.Name, Path: found, Content: content}
		to.Files = append(to.Files, named)
		if n.Secret {
			continue
		}
		if named.Variables, err = s.variables(in, n.Format, found, content); err != nil {
			return err
		}
		if err := s.addNamedBy(in, to, root, found, n.Format, content, named.GetVariables()); err != nil {
			return err
		}
	}
	return nil
}

func isAdded(to *agboxv1.ConfigFile, path string) bool {
	for _, f := range to.GetFiles() {
		if f.GetPath() == path {
			return true
		}
	}
	return false
}

// fetchBound is how long fetching one feature may take.
const fetchBound = 2 * time.Minute

// maxFeatures bounds the features of one file, with those that they depend on.
const maxFeatures = 64

// addFeatures adds the descriptions of the features that a devcontainer.json names, and of
// those that they depend on. It fetches those of registries.
func (s SpecFiles) addFeatures(in *SpecInput, file *agboxv1.ConfigFile) error {
	wanted := feature.Named(file.GetContent())
	seen := make(map[string]bool)
	allowed := 0 // of wanted
	for len(wanted) > 0 {
		if len(seen)+len(wanted) > 4*maxFeatures {
			return tooManyFeatures(file)
		}
		if allowed == 0 {
			if err := s.mayFetch(in, wanted); err != nil {
				return err
			}
			allowed = len(wanted)
		}
		reference := wanted[0]
		wanted, allowed = wanted[1:], allowed-1
		if seen[reference] {
			continue
		}
		if seen[reference] = true; len(seen) > maxFeatures {
			return tooManyFeatures(file)
		}
		named := &agboxv1.NamedFile{Name: reference}
		var err error
		switch feature.KindOf(reference) {
		case feature.Local:
			err = localFeature(in, file.GetPath(), named)
		case feature.Registry:
			err = s.fetchedFeature(in, named)
		case feature.Unusable:
			continue // the daemon says so
		}
		if err != nil {
			return err
		}
		file.Files = append(file.Files, named)
		wanted = append(wanted, feature.Named(named.GetContent())...)
	}
	return nil
}

func tooManyFeatures(file *agboxv1.ConfigFile) error {
	return &Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("The file %s has more than %d features, with those that they depend on: name fewer.", file.GetPath(), maxFeatures)}
}

// mayFetch asks MayFetch about those features that are to be fetched for the first time.
func (s SpecFiles) mayFetch(in *SpecInput, wanted []string) error {
	if s.MayFetch == nil {
		return nil
	}
	install, err := paths.FromEnv()
	if err != nil {
		return err
	}
	var fresh []string
	for _, reference := range wanted {
		if feature.KindOf(reference) == feature.Registry && !slices.Contains(fresh, reference) && !(featureStore{dir: install.Features()}).has(reference) {
			fresh = append(fresh, reference)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	return s.MayFetch(in, fresh)
}

// localFeature reads the description of a feature in the project of a devcontainer.json.
// What the feature runs is also part of what a person agrees to.
func localFeature(in *SpecInput, file string, named *agboxv1.NamedFile) error {
	project := document.ProjectOf(file)
	folder := filepath.Join(filepath.Dir(file), named.GetName())
	for _, name := range []string{feature.FileName, feature.Script} {
		content, path, err := readBeside(project, filepath.Join(folder, name))
		if err != nil {
			return err
		}
		in.Files = append(in.Files, SpecSource{Path: path, Content: content})
		if name == feature.FileName {
			named.Path, named.Content = path, content
		}
	}
	return nil
}

// fetchedFeature reads the description of a feature of a registry, and fetches it first if
// it is not here.
func (s SpecFiles) fetchedFeature(in *SpecInput, named *agboxv1.NamedFile) error {
	install, err := paths.FromEnv()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), fetchBound)
	defer cancel()
	folder, digest, err := featureStore{dir: install.Features(), refresh: s.Refresh}.fetch(ctx, named.GetName())
	if err != nil {
		code, reason := codes.Unavailable, agboxv1.ErrorReason_IMAGE_PULL_FAILED
		if noSuchFeature(err) {
			code, reason = codes.NotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND
		}
		return &Error{Code: code, Reason: reason.String(), cause: err, Message: fmt.Sprintf(
			"The feature %s cannot be fetched: %v. Check its name, and that this machine reaches the registry; or copy the folder of the feature beside devcontainer.json, and name it ./FOLDER.", named.GetName(), err)}
	}
	named.Path, named.Digest = filepath.Join(folder, feature.FileName), digest
	named.Content, err = readSpec(named.GetPath())
	in.Files = append(in.Files, SpecSource{Path: named.GetPath(), Content: named.GetContent()})
	return err
}
