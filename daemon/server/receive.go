package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/proto/agbox/caller"
)

// messageHeader is how many bytes gRPC sends before each message: whether it is compressed,
// and its length.
const messageHeader = 5

// incoming is what gRPC's stream of a call offers beside grpc.ServerTransportStream. Its own
// RecvMsg sends the status of a request that is too large or malformed itself, without
// ErrorInfo, so requests are read from the transport.
type incoming interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// receive reads one request into m. io.EOF means that the client sends nothing more.
func (c *checkedStream) receive(m any) error {
	from, ok := grpc.ServerTransportStreamFromContext(c.ServerStream.Context()).(incoming)
	if !ok {
		return c.ServerStream.RecvMsg(m) // a stream of a test
	}
	var header [messageHeader]byte
	if err := from.ReadMessageHeader(header[:]); err != nil {
		return cutOff(err)
	}
	size := binary.BigEndian.Uint32(header[1:])
	switch {
	case header[0] != 0:
		return fault.New(errdefs.ErrNotImplemented, agboxv1.ErrorReason_INVALID_REQUEST, "This agboxd takes no compressed requests. Send it uncompressed.")
	case size > MaxMessage:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_INVALID_REQUEST,
			"The request has %s. A message has at most %s: give large content as files of the host, by mounts, copies or uploads.", mebibytes(int(size)), mebibytes(MaxMessage))
	}
	data, err := from.Read(int(size))
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return cutOff(err)
	}
	defer data.Free()
	if err := encoding.GetCodecV2(grpcproto.Name).Unmarshal(data, m); err != nil {
		return invalid("The request is no message of this call: %v.", err)
	}
	return nil
}

// cutOff returns the error of a request that did not arrive completely.
func cutOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("The request ended before its length.")
	}
	return err
}

// only reads the one request of a call into m.
func (c *checkedStream) only(m any) error {
	err := c.receive(m)
	if errors.Is(err, io.EOF) {
		return invalid("The call has no request.")
	}
	return err
}

// last returns an error unless the client has sent its last request.
func (c *checkedStream) last() error {
	from, ok := grpc.ServerTransportStreamFromContext(c.ServerStream.Context()).(incoming)
	if !ok {
		return nil
	}
	switch err := from.ReadMessageHeader(make([]byte, messageHeader)); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return cutOff(err)
	}
	return invalid("The call takes one request only.")
}

// fits returns an error if an answer is longer than the client accepts.
func (c *checkedStream) fits(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	size := proto.Size(msg)
	if size <= MaxMessage {
		return nil
	}
	limit := MaxMessage
	if len(metadata.ValueFromIncomingContext(c.ServerStream.Context(), caller.Header)) > 0 {
		limit = caller.MaxAnswer
	}
	if size <= limit {
		return nil
	}
	return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_INVALID_REQUEST,
		"The answer has %s, and this client accepts %s: ask for less, for example by labels, by sandbox or in pages.", mebibytes(size), mebibytes(limit))
}

func mebibytes(n int) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)+0.05)
}

// registrar registers services with unary calls as streams of one request and one answer, so
// that all requests are read by receive.
type registrar struct {
	*grpc.Server
	guard *guard
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	all := *desc
	all.Methods, all.Streams = nil, slices.Clone(desc.Streams)
	for _, m := range desc.Methods {
		all.Streams = append(all.Streams, grpc.StreamDesc{StreamName: m.MethodName, Handler: r.guard.once(m)})
	}
	r.Server.RegisterService(&all, impl)
}

// once returns the handler of a unary call.
func (g *guard) once(m grpc.MethodDesc) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		checked, ok := stream.(*checkedStream)
		if !ok {
			return fmt.Errorf("%s: the stream is a %T", m.MethodName, stream)
		}
		answer, err := m.Handler(srv, checked.ServerStream.Context(), checked.only, g.unary)
		if err != nil {
			return err
		}
		return checked.SendMsg(answer)
	}
}

// unknown answers calls that no service has.
func unknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return fault.New(errdefs.ErrNotImplemented, agboxv1.ErrorReason_INVALID_REQUEST,
		"This agboxd does not know the call %.200q. If it is older than the program that made it, restart it with `agbox daemon stop` and `agbox daemon start`.", method)
}
