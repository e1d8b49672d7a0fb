package runtimetest

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// imageCases test pull policies, platforms, builds and lists of images.
var imageCases = map[string]func(*testing.T, *subject){
	"PolicyNeverUsesOnlyLocalImages": func(t *testing.T, s *subject) {
		there, err := s.Engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: s.Image, Policy: runtime.PullNever}, nil)
		must(t, err)
		if there.Platform == "" {
			t.Error("the image has no platform")
		}
		_, err = s.Engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: "agbox-conformance/none:1", Policy: runtime.PullNever}, nil)
		wantReason(t, err, agboxv1.ErrorReason_IMAGE_NOT_FOUND)
	},
	"AnImageOfAnotherPlatformIsNotUsed": func(t *testing.T, s *subject) {
		there := s.image(t)
		for _, platform := range []string{there.Platform, "linux/s390x"} {
			_, err := s.Engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: s.Image, Policy: runtime.PullNever, Platform: platform}, nil)
			if platform == there.Platform {
				must(t, err)
				continue
			}
			wantReason(t, err, agboxv1.ErrorReason_IMAGE_NOT_FOUND)
		}
	},
	"ABuiltImageIsListedAndCanBeUsed": func(t *testing.T, s *subject) {
		tag := "agbox-conformance/" + strings.ToLower(ids.New()) + ":1"
		var said strings.Builder
		id, err := s.Engine.BuildImage(t.Context(), runtime.BuildOptions{Tags: []string{tag}, Dockerfile: "sub/Dockerfile"},
			archiveOf(t, "sub/Dockerfile", "FROM "+s.Image+"\nLABEL built=here\n"),
			func(text string) error { said.WriteString(text); return nil })
		must(t, err)
		t.Cleanup(func() { s.RemoveImage(t, id) })
		if said.Len() == 0 {
			t.Error("the build printed nothing")
		}
		used, err := s.Engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: tag, Policy: runtime.PullNever}, nil)
		must(t, err)
		if used.ID != id {
			t.Errorf("the build returned %s, but its tag refers to %s", id, used.ID)
		}
		all, err := s.Engine.ListImages(t.Context())
		must(t, err)
		if !slices.ContainsFunc(all, func(i runtime.ListedImage) bool { return i.ID == id && slices.Contains(i.Names, tag) && i.Size > 0 }) {
			t.Errorf("the built image %s is not in the list", tag)
		}
	},
	"AnImageIsRemovedUnlessAContainerUsesIt": func(t *testing.T, s *subject) {
		tag := "agbox-conformance/" + strings.ToLower(ids.New()) + ":1"
		id, err := s.Engine.BuildImage(t.Context(), runtime.BuildOptions{Tags: []string{tag}},
			archiveOf(t, "Dockerfile", "FROM "+s.Image+"\nENV TAG="+tag+"\n"), func(string) error { return nil })
		must(t, err)
		made := s.ensure(t, s.sleeper(id, s.network(t).ID))
		wantReason(t, s.Engine.RemoveImage(t.Context(), tag), agboxv1.ErrorReason_IMAGE_IN_USE)
		used := func() (there, used bool) {
			all, err := s.Engine.ListImages(t.Context())
			must(t, err)
			i := slices.IndexFunc(all, func(i runtime.ListedImage) bool { return i.ID == id })
			return i >= 0, i >= 0 && all[i].Used
		}
		if there, used := used(); !there || !used {
			t.Errorf("it is listed: %v, used: %v", there, used)
		}
		must(t, s.Engine.RemoveContainer(t.Context(), made))
		if there, used := used(); !there || used {
			t.Errorf("after its container it is listed: %v, used: %v", there, used)
		}
		must(t, s.Engine.RemoveImage(t.Context(), tag))
		must(t, s.Engine.RemoveImage(t.Context(), tag))
		if there, _ := used(); there {
			t.Error("it is still listed")
		}
	},
	"AFailedBuildIsReported": func(t *testing.T, s *subject) {
		_, err := s.Engine.BuildImage(t.Context(), runtime.BuildOptions{}, archiveOf(t, "other", "FROM "+s.Image+"\n"), func(string) error { return nil })
		wantReason(t, err, agboxv1.ErrorReason_IMAGE_BUILD_FAILED)
	},
}

func archiveOf(t *testing.T, name, content string) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}))
	_, err := w.Write([]byte(content))
	must(t, err)
	must(t, w.Close())
	return &out
}
