package client

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client/registry"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
	"github.com/agbox/agbox/spec/feature"
)

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
		if feature.KindOf(reference) == feature.Registry && !slices.Contains(fresh, reference) && !(registry.Store{Dir: install.Features()}).Has(reference) {
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
	folder, digest, err := registry.Store{Dir: install.Features(), Refresh: s.Refresh}.Fetch(ctx, named.GetName())
	if err != nil {
		code, reason := codes.Unavailable, agboxv1.ErrorReason_IMAGE_PULL_FAILED
		if registry.IsMissing(err) {
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
