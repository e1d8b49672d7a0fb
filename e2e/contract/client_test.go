package contract

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// publishedClient speaks the published contract with a daemon.
type publishedClient struct {
	conn    *grpc.ClientConn
	service protoreflect.ServiceDescriptor
}

// fields are a message as a caller writes it: names from the table and their values.
type fields map[string]any

func connect(t *testing.T, socket string) *publishedClient {
	t.Helper()
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	conn, err := grpc.NewClient("passthrough:///agboxd", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return &publishedClient{conn: conn, service: published(t)}
}

func (c *publishedClient) method(t *testing.T, name string) protoreflect.MethodDescriptor {
	t.Helper()
	m := c.service.Methods().ByName(protoreflect.Name(name))
	if m == nil {
		t.Fatalf("the published contract has no method %s", name)
	}
	return m
}

func (c *publishedClient) request(t *testing.T, m protoreflect.MethodDescriptor, request fields) proto.Message {
	t.Helper()
	raw, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	in := dynamicpb.NewMessage(m.Input())
	if err := protojson.Unmarshal(raw, in); err != nil {
		t.Fatalf("%s: %v", m.Name(), err)
	}
	return in
}

// try makes a unary call.
func (c *publishedClient) try(t *testing.T, name string, request fields) (answer, error) {
	t.Helper()
	m := c.method(t, name)
	out := dynamicpb.NewMessage(m.Output())
	err := c.conn.Invoke(harness.Bounded(t), fmt.Sprintf("/%s/%s", c.service.FullName(), name), c.request(t, m, request), out)
	if err != nil {
		return answer{}, err
	}
	return read(t, name, out), nil
}

// call makes a unary call that must succeed.
func (c *publishedClient) call(t *testing.T, name string, request fields) answer {
	t.Helper()
	a, err := c.try(t, name, request)
	if err != nil {
		t.Fatalf("%s(%v): %v", name, request, err)
	}
	return a
}

// refusal is what a published SDK reads from an error.
type refusal struct {
	code    codes.Code
	reason  string
	message string
	// metadata has the ids and sequences of the error.
	metadata map[string]string
}

// refuse makes a call that must fail, unary or streaming.
func (c *publishedClient) refuse(t *testing.T, name string, request fields) refusal {
	t.Helper()
	var err error
	if c.method(t, name).IsStreamingServer() {
		_, err = c.subscribe(t, name, request).next(t)
	} else {
		_, err = c.try(t, name, request)
	}
	if err == nil {
		t.Fatalf("%s(%v) succeeds", name, request)
	}
	return refused(err)
}

func refused(err error) refusal {
	st, _ := status.FromError(err)
	r := refusal{code: st.Code(), message: st.Message()}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "agents-sandbox" {
			r.reason, r.metadata = info.GetReason(), info.GetMetadata()
		}
	}
	return r
}

// subscription is a server stream.
type subscription struct {
	stream grpc.ClientStream
	name   string
	output protoreflect.MessageDescriptor
}

func (c *publishedClient) subscribe(t *testing.T, name string, request fields) *subscription {
	t.Helper()
	m := c.method(t, name)
	stream, err := c.conn.NewStream(harness.Bounded(t), &grpc.StreamDesc{ServerStreams: true}, fmt.Sprintf("/%s/%s", c.service.FullName(), name))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(c.request(t, m, request)); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return &subscription{stream: stream, name: name, output: m.Output()}
}

// next receives one message. The error is io.EOF at the end of the stream.
func (s *subscription) next(t *testing.T) (answer, error) {
	t.Helper()
	out := dynamicpb.NewMessage(s.output)
	if err := s.stream.RecvMsg(out); err != nil {
		return answer{}, err
	}
	return read(t, s.name, out), nil
}

// until receives messages up to the first one for which fits is true, which it returns
// last.
func (s *subscription) until(t *testing.T, fits func(answer) bool) []answer {
	t.Helper()
	var all []answer
	for {
		a, err := s.next(t)
		if err != nil {
			t.Fatalf("%s ended (%v) after %v", s.name, err, all)
		}
		all = append(all, a)
		if fits(a) {
			return all
		}
	}
}

// answer is a message as a published SDK sees it.
type answer struct {
	values map[string]any
	raw    *dynamicpb.Message
}

// read decodes a message. A value that the published enums do not have fails the test,
// because the Python SDK's enums are closed and it raises an exception.
func read(t *testing.T, method string, m *dynamicpb.Message) answer {
	t.Helper()
	closed(t, method, m)
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{raw: m}
	if err := json.Unmarshal(raw, &a.values); err != nil {
		t.Fatal(err)
	}
	return a
}

func closed(t *testing.T, where string, m protoreflect.Message) {
	t.Helper()
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := where + "." + string(f.Name())
		switch {
		case f.IsMap():
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range v.List().Len() {
				closed(t, at, v.List().Get(i).Message())
			}
		case f.Kind() == protoreflect.MessageKind:
			closed(t, at, v.Message())
		case f.Kind() == protoreflect.EnumKind && f.Enum().Values().ByNumber(v.Enum()) == nil:
			t.Errorf("%s is %d, which no published %s has", at, v.Enum(), f.Enum().Name())
		}
		return true
	})
}

// at returns the value at a path such as "sandbox.services.0.name", or nil.
func (a answer) at(path string) any {
	var here any = a.values
	for step := range strings.SplitSeq(path, ".") {
		switch v := here.(type) {
		case map[string]any:
			here = v[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(v) {
				return nil
			}
			here = v[i]
		default:
			return nil
		}
	}
	return here
}

// text returns a value as text, or "". Numbers are decimal.
func (a answer) text(path string) string {
	if v := a.at(path); v != nil {
		return fmt.Sprint(v)
	}
	return ""
}

// texts returns the values of one field of a list of messages.
func (a answer) texts(list, field string) []string {
	items, _ := a.at(list).([]any)
	var all []string
	for i := range items {
		all = append(all, a.text(fmt.Sprintf("%s.%d.%s", list, i, field)))
	}
	return all
}

// extra returns the value of an integer field that the published contract does not have,
// or 0.
func (a answer) extra(t *testing.T, number protowire.Number) uint64 {
	t.Helper()
	for rest := a.raw.GetUnknown(); len(rest) > 0; {
		n, typ, size := protowire.ConsumeTag(rest)
		if size < 0 {
			t.Fatal(protowire.ParseError(size))
		}
		rest = rest[size:]
		if n == number && typ == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(rest)
			return v
		}
		if size = protowire.ConsumeFieldValue(n, typ, rest); size < 0 {
			t.Fatal(protowire.ParseError(size))
		}
		rest = rest[size:]
	}
	return 0
}
