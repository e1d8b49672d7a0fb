package server

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/daemon/build"
	"github.com/agbox/agbox/runtime"
)

// imageCalls implements the calls about images.
type imageCalls struct {
	engine    Engine
	admission *admission.Controller
	loop      Loop
	life      *lifetime
}

// ListImages lists the engine's images.
func (s *imageCalls) ListImages(ctx context.Context, _ *agboxv1.ListImagesRequest) (*agboxv1.ListImagesResponse, error) {
	all, err := s.engine.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	resp := new(agboxv1.ListImagesResponse)
	for _, i := range build.List(all) {
		resp.Images = append(resp.Images, &agboxv1.Image{
			Id: i.ID, Names: i.Names, SizeBytes: uint64(max(i.Size, 0)), CreatedAt: timestamppb.New(i.CreatedAt),
			Built: i.Built, Used: i.Needed,
		})
	}
	return resp, nil
}

// RemoveImage removes an image.
func (s *imageCalls) RemoveImage(ctx context.Context, req *agboxv1.RemoveImageRequest) (*agboxv1.RemoveImageResponse, error) {
	if err := s.loop.RemoveImage(ctx, req.GetImage(), req.GetOnlyUnusedBuilt()); err != nil {
		return nil, err
	}
	return new(agboxv1.RemoveImageResponse), nil
}

// PullImage pulls an image. It ends with its call, and when the daemon stops.
func (s *imageCalls) PullImage(req *agboxv1.PullImageRequest, stream grpc.ServerStreamingServer[agboxv1.PullImageResponse]) error {
	ctx, done := s.life.context(stream.Context())
	defer done()
	want := runtime.ImageRequest{Ref: req.GetImage(), Platform: req.GetPlatform()}
	switch req.GetPolicy() {
	case agboxv1.PullPolicy_PULL_POLICY_UNSPECIFIED, agboxv1.PullPolicy_PULL_POLICY_ALWAYS:
		want.Policy = runtime.PullAlways
	case agboxv1.PullPolicy_PULL_POLICY_NEVER:
		want.Policy = runtime.PullNever
	}
	var sending error
	pulled, err := s.engine.EnsureImage(ctx, want, func(p runtime.PullProgress) {
		if sending == nil {
			sending = stream.Send(&agboxv1.PullImageResponse{
				LayersDone: uint32(p.LayersDone), LayersTotal: uint32(p.LayersTotal),
				BytesDone: uint64(p.BytesDone), BytesTotal: uint64(p.BytesTotal),
			})
		}
	})
	if err != nil {
		return orStopped(ctx, err)
	}
	return stream.Send(&agboxv1.PullImageResponse{Image: &agboxv1.Image{Id: pulled.ID, Platform: pulled.Platform, Names: []string{req.GetImage()}}})
}

// BuildImage passes a build to the engine. It ends with its call, and when the daemon
// stops.
func (s *imageCalls) BuildImage(stream grpc.BidiStreamingServer[agboxv1.BuildImageRequest, agboxv1.BuildImageResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	o := first.GetOptions()
	if o == nil {
		return invalid("The first message of a build says how to build; this one has no options.")
	}
	ctx, done := s.life.context(stream.Context())
	defer done()
	archive, pieces := io.Pipe()
	s.life.receivers.Go(func() { _ = pieces.CloseWithError(receiveContext(stream, pieces)) })
	defer archive.Close()
	id, err := s.engine.BuildImage(ctx, runtime.BuildOptions{
		Tags: o.GetTags(), Dockerfile: o.GetDockerfile(), Args: o.GetBuildArgs(), Target: o.GetTarget(),
		Platform: o.GetPlatform(), NoCache: o.GetNoCache(), Pull: o.GetPull(),
	}, archive, func(text string) error { return stream.Send(&agboxv1.BuildImageResponse{Output: text}) })
	if err != nil {
		return orStopped(ctx, err)
	}
	return stream.Send(&agboxv1.BuildImageResponse{ImageId: id})
}

// BuildSandboxImages makes the images that a request for a sandbox builds. It ends with its
// call, and when the daemon stops.
func (s *imageCalls) BuildSandboxImages(req *agboxv1.BuildSandboxImagesRequest, stream grpc.ServerStreamingServer[agboxv1.BuildSandboxImagesResponse]) error {
	ctx, done := s.life.context(stream.Context())
	defer done()
	spec, err := s.admission.AdmitBuilds(ctx, req.GetCreate())
	if err == nil {
		err = s.loop.BuildImages(ctx, spec, func(service, line, id string) error {
			return stream.Send(&agboxv1.BuildSandboxImagesResponse{Service: service, Output: strings.ToValidUTF8(line, "?"), ImageId: id})
		})
	}
	return orStopped(ctx, err)
}

// receiveContext writes the build context that a client sends. It ends at the end of the
// context, with the call, or when nobody reads any more.
func receiveContext(stream grpc.BidiStreamingServer[agboxv1.BuildImageRequest, agboxv1.BuildImageResponse], to io.Writer) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			_, err = to.Write(m.GetContext())
		}
		if err != nil {
			return err
		}
	}
}
