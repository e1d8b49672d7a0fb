package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"

	"buf.build/go/protovalidate"
	"github.com/containerd/errdefs"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/proto/agbox/caller"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// MaxMessage is the maximum size of one message of the API in bytes. A log chunk or a
// page of events is much smaller. Answers to clients of ours may have caller.MaxAnswer.
const MaxMessage = 4 << 20

// guard wraps every call: it checks requests and converts errors into statuses.
type guard struct {
	// rules are those of the .proto files.
	rules protovalidate.Validator
	log   *slog.Logger
	life  *lifetime
}

// unary checks the request of a unary call. It runs inside stream.
func (g *guard) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := g.check(req); err != nil {
		return nil, err
	}
	return handle(identified(ctx, req), req)
}

// stream converts every error of a call into a status with a reason. Requests of streams are
// checked as they arrive.
func (g *guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = g.panicked(info.FullMethod, r)
		}
		err = g.status(info.FullMethod, err)
	}()
	checked := &checkedStream{ServerStream: stream, check: g.check, stopping: g.life.stopping, one: !info.IsClientStream}
	if !info.IsServerStream {
		checked.stopping = nil // its only message is the answer to completed work
	}
	return handle(srv, checked)
}

// panicked turns a panic into an error of one call: the daemon owns other work and must
// continue.
func (g *guard) panicked(method string, r any) error {
	g.log.Error("a handler panicked", "method", method, "panic", r, "stack", string(debug.Stack()))
	return fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_INTERNAL_ERROR,
		"The daemon made a mistake; its log has the details, please report it.")
}

// status makes the error of a call: code, sentence and ErrorInfo. An error without a
// published reason is an internal error and is logged here.
func (g *guard) status(method string, err error) error {
	if err == nil {
		return nil
	}
	f := fault.Of(err)
	if f == nil {
		if st, ok := status.FromError(err); ok {
			return withReason(st)
		}
	}
	c, reason := code(err), fault.ReasonOf(err)
	if f == nil && c == codes.Internal {
		g.log.Error("a call failed", "method", method, "error", err)
	} else if f != nil && f.Cause != nil {
		g.log.Warn("a call failed", "method", method, "error", err, "cause", f.Cause)
	}
	info := &errdetails.ErrorInfo{Domain: fault.Domain, Reason: reason.String()}
	if f != nil {
		info.Metadata = f.Metadata
	}
	if f == nil && (c == codes.Canceled || c == codes.DeadlineExceeded) {
		info.Reason = agboxv1.ErrorReason_ERROR_REASON_UNSPECIFIED.String()
	}
	details := []protoadapt.MessageV1{info}
	if bad := new(admission.SpecError); errors.As(err, &bad) {
		details = append(details, &agboxv1.ResolveSpecResponse{Problems: bad.Problems})
	}
	st := status.New(c, err.Error())
	if with, detailErr := st.WithDetails(details...); detailErr == nil {
		st = with
	}
	return st.Err()
}

// check checks the request against the rules in the .proto files.
func (g *guard) check(req any) error {
	msg, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	err := g.rules.Validate(withoutSpec(msg))
	var bad *protovalidate.ValidationError
	if !errors.As(err, &bad) {
		return err
	}
	var sentences, wrong []string
	for _, v := range bad.Violations {
		if ask := missing(v); ask != "" {
			sentences = append(sentences, ask)
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s: %s", protovalidate.FieldPathString(v.Proto.GetField()), sentence(v)))
	}
	if len(wrong) > 0 {
		sentences = append(sentences, strings.Join(wrong, "; ")+".")
	}
	return invalid("%s", strings.Join(sentences, " "))
}

// withoutSpec removes the spec from a request. Package spec checks it, together with the
// files, so that all problems are reported at once.
func withoutSpec(msg proto.Message) proto.Message {
	switch req := msg.(type) {
	case *agboxv1.ResolveSpecRequest:
		return withoutSpec(req.GetCreate())
	case *agboxv1.SetPoolRequest:
		create, _ := withoutSpec(req.GetCreate()).(*agboxv1.CreateSandboxRequest)
		return &agboxv1.SetPoolRequest{Name: req.GetName(), Size: req.GetSize(), Create: create}
	case *agboxv1.BuildSandboxImagesRequest:
		return withoutSpec(req.GetCreate())
	case *agboxv1.CreateSandboxRequest:
		return &agboxv1.CreateSandboxRequest{
			SandboxId: req.GetSandboxId(), ConfigYaml: req.GetConfigYaml(), BaseFiles: req.GetBaseFiles(),
			ConfigDir: req.GetConfigDir(), HomeDir: req.GetHomeDir(), ConfigPath: req.GetConfigPath(), HostEnv: req.GetHostEnv(),
			RequestKey: req.GetRequestKey(),
		}
	}
	return msg
}

// sentence describes the problem of a field in plain words. The rule itself would show a
// regular expression.
func sentence(v *protovalidate.Violation) string {
	if v.Proto.GetRuleId() != "string.pattern" {
		return v.Proto.GetMessage()
	}
	field := protovalidate.FieldPathString(v.Proto.GetField())
	got := ""
	if v.FieldValue.IsValid() && v.FieldDescriptor != nil && !v.FieldDescriptor.IsMap() {
		got = fmt.Sprintf("%.80q ", v.FieldValue.String())
	}
	switch {
	case v.FieldDescriptor != nil && refersToExec(v.FieldDescriptor):
		return got + "is not the id of a command"
	case strings.HasSuffix(field, "cwd"), field == "path", field == "new_path", field == "open.path":
		return got + "is not an absolute path"
	case strings.HasSuffix(field, "_id"), strings.HasSuffix(field, "page_token"):
		return got + "is not an id or a name: letters, digits, '_', '.' and '-', beginning with a letter or digit, at most 200 characters"
	case strings.HasSuffix(field, "name"):
		return got + "is not a name: lower-case letters, digits, '_', '.' and '-', beginning with a letter or digit, at most 63 characters"
	case strings.HasSuffix(field, "request_key"):
		return got + "is not a request key: printable ASCII characters without spaces, at most 200"
	case strings.HasSuffix(field, "user"):
		return got + "is not user, uid, user:group or uid:gid"
	}
	return got + "has characters that are not allowed here"
}

// refersToExec reports whether a field names an existing exec. In a request to create
// one, the id is chosen by the caller.
func refersToExec(f protoreflect.FieldDescriptor) bool {
	return f.Name() == "exec_id" && f.ContainingMessage() != (*agboxv1.CreateExecRequest)(nil).ProtoReflect().Descriptor()
}

// askFor says what to give for an empty field, by the field's name.
var askFor = map[string]string{
	"sandbox_id":     "the id of a sandbox",
	"exec_id":        "the id of an exec",
	"kind":           "the kind of what is meant: a sandbox, an exec or an agent",
	"command":        "a command",
	"label_selector": "at least one label",
	"image":          "an image",
	"name":           "a name",
	"service":        "the name of a service",
	"path":           "an absolute path",
	"new_path":       "an absolute path to move to",
	"signal":         "a signal from 1 to 64",
	"item":           "what the message is: its fields are all unset",
}

// missing returns the sentence for a required field that is empty, or "" for any other
// violation.
func missing(v *protovalidate.Violation) string {
	switch v.Proto.GetRuleId() {
	case "string.pattern", "string.min_len":
		if text, ok := v.FieldValue.Interface().(string); !ok || text != "" || v.FieldDescriptor != nil && v.FieldDescriptor.IsMap() {
			return ""
		}
	case "int32.gte_lte":
		if v.FieldValue.Int() != 0 {
			return ""
		}
	case "message.oneof":
		if strings.HasPrefix(v.Proto.GetMessage(), "only one of") {
			return "Give the id of a sandbox or its name, not both."
		}
		return "Give the id of a sandbox."
	case "repeated.min_items", "map.min_pairs", "required":
	default:
		return ""
	}
	elements := v.Proto.GetField().GetElements()
	last := elements[len(elements)-1]
	if what := askFor[last.GetFieldName()]; what != "" && !last.HasIndex() {
		return fmt.Sprintf("Give %s.", what)
	}
	return fmt.Sprintf("Give %s a value.", protovalidate.FieldPathString(v.Proto.GetField()))
}

// checkedStream is a call whose messages keep the rules.
type checkedStream struct {
	grpc.ServerStream
	check    func(any) error
	stopping <-chan struct{}
	// one is true if the client may send one request only.
	one bool
	// begun is true once a request has arrived.
	begun bool
}

// Context returns the context of the call, with who makes it.
func (c *checkedStream) Context() context.Context { return identified(c.ServerStream.Context(), nil) }

// SendMsg fails when the daemon stops. A stream that always has something to send would
// not notice otherwise.
func (c *checkedStream) SendMsg(m any) error {
	select {
	case <-c.stopping:
		return errStopping()
	default:
	}
	if err := c.fits(m); err != nil {
		return err
	}
	return c.ServerStream.SendMsg(m)
}

func (c *checkedStream) RecvMsg(m any) error {
	if !c.one {
		err := c.receive(m)
		if errors.Is(err, io.EOF) && !c.begun {
			return invalid("The call ended before its first message, which says what to do.")
		}
		if err != nil {
			return err
		}
		c.begun = true
		return c.check(m)
	}
	if err := c.only(m); err != nil {
		return err
	}
	if err := c.last(); err != nil {
		return err
	}
	return c.check(m)
}

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
