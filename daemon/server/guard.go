package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"

	"buf.build/go/protovalidate"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
)

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

// panicked turns a panic into an error of one call: the daemon owns other work and must
// continue.
func (g *guard) panicked(method string, r any) error {
	g.log.Error("a handler panicked", "method", method, "panic", r, "stack", string(debug.Stack()))
	return fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_INTERNAL_ERROR,
		"The daemon made a mistake; its log has the details, please report it.")
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

func invalid(format string, args ...any) error {
	return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, format, args...)
}
