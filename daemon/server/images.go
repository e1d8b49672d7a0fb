package server

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/runtime"
)

// Engine is what the API asks of the engine itself. What changes sandboxes is the
// loop's alone.
type Engine interface {
	Abilities(ctx context.Context) (runtime.Abilities, error)
	Inventory(ctx context.Context, installID string) (runtime.Inventory, error)
	ContainerUsage(ctx context.Context, id string) (runtime.Usage, error)
	EnsureImage(ctx context.Context, want runtime.ImageRequest, progress func(runtime.PullProgress)) (runtime.Image, error)
	ListImages(ctx context.Context) ([]runtime.ListedImage, error)
	BuildImage(ctx context.Context, opts runtime.BuildOptions, context io.Reader, output func(string) error) (id string, err error)
}

// ListImages lists the engine's images.
func (s *Server) ListImages(ctx context.Context, _ *agboxv1.ListImagesRequest) (*agboxv1.ListImagesResponse, error) {
	all, err := s.Engine.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	resp := new(agboxv1.ListImagesResponse)
	for _, i := range all {
		resp.Images = append(resp.Images, &agboxv1.Image{
			Id: i.ID, Names: i.Names, SizeBytes: uint64(max(i.Size, 0)), CreatedAt: timestamppb.New(i.CreatedAt),
		})
	}
	return resp, nil
}

// PullImage pulls an image. It ends with its call, and with the daemon.
func (s *Server) PullImage(req *agboxv1.PullImageRequest, stream grpc.ServerStreamingServer[agboxv1.PullImageResponse]) error {
	ctx, done := s.whileServing(stream.Context())
	defer done()
	want := runtime.ImageRequest{Ref: req.GetImage(), Platform: req.GetPlatform()}
	switch req.GetPolicy() {
	case agboxv1.PullPolicy_PULL_POLICY_UNSPECIFIED, agboxv1.PullPolicy_PULL_POLICY_ALWAYS:
		want.Policy = runtime.PullAlways
	case agboxv1.PullPolicy_PULL_POLICY_NEVER:
		want.Policy = runtime.PullNever
	}
	var sending error
	pulled, err := s.Engine.EnsureImage(ctx, want, func(p runtime.PullProgress) {
		if sending == nil {
			sending = stream.Send(&agboxv1.PullImageResponse{
				LayersDone: uint32(p.LayersDone), LayersTotal: uint32(p.LayersTotal),
				BytesDone: uint64(p.BytesDone), BytesTotal: uint64(p.BytesTotal),
			})
		}
	})
	if err != nil {
		return s.orStopping(err)
	}
	return stream.Send(&agboxv1.PullImageResponse{Image: &agboxv1.Image{Id: pulled.ID, Platform: pulled.Platform, Names: []string{req.GetImage()}}})
}

// BuildImage hands a build to the engine. It ends with its call, and with the daemon.
func (s *Server) BuildImage(stream grpc.BidiStreamingServer[agboxv1.BuildImageRequest, agboxv1.BuildImageResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	o := first.GetOptions()
	if o == nil {
		return invalid("The first message of a build says how to build; this one has no options.")
	}
	ctx, done := s.whileServing(stream.Context())
	defer done()
	archive, pieces := io.Pipe()
	s.receivers.Go(func() { _ = pieces.CloseWithError(receiveContext(stream, pieces)) })
	defer archive.Close()
	id, err := s.Engine.BuildImage(ctx, runtime.BuildOptions{
		Tags: o.GetTags(), Dockerfile: o.GetDockerfile(), Args: o.GetBuildArgs(), Target: o.GetTarget(),
		Platform: o.GetPlatform(), NoCache: o.GetNoCache(), Pull: o.GetPull(),
	}, archive, func(text string) error { return stream.Send(&agboxv1.BuildImageResponse{Output: text}) })
	if err != nil {
		return s.orStopping(err)
	}
	return stream.Send(&agboxv1.BuildImageResponse{ImageId: id})
}

// receiveContext writes what a client sends of a build context. It ends at the end
// of that, with the call, or when nobody reads any more.
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

// whileServing is a context that also ends when the daemon stops.
func (s *Server) whileServing(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { // ends with cancel, which the caller waits for
		defer close(ended)
		select {
		case <-s.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-ended }
}

// orStopping tells a caller whose work ended because the daemon stops.
func (s *Server) orStopping(err error) error {
	select {
	case <-s.stopping:
		return errStopping()
	default:
		return err
	}
}
