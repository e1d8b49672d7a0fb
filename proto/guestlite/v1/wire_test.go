package guestv1_test

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	lite "github.com/agbox/agbox/proto/guestlite/v1"
)

// message is a message of this package.
type message interface {
	MarshalVT() ([]byte, error)
	UnmarshalVT(raw []byte) error
	SizeVT() int
	Reset()
}

// messages has this package's type for each message of the link.
var messages = map[protoreflect.Name]message{
	"AgentBoot": &lite.AgentBoot{}, "AgentRequest": &lite.AgentRequest{}, "AllotRequest": &lite.AllotRequest{}, "AllotResponse": &lite.AllotResponse{}, "AnswerRequest": &lite.AnswerRequest{}, "AnswerResponse": &lite.AnswerResponse{},
	"BootConfig": &lite.BootConfig{}, "CallLimits": &lite.CallLimits{}, "CancelRequest": &lite.CancelRequest{}, "CancelResponse": &lite.CancelResponse{},
	"Change": &lite.Change{}, "DrainRequest": &lite.DrainRequest{}, "DrainResponse": &lite.DrainResponse{}, "ExecRecord": &lite.ExecRecord{},
	"FileError": &lite.FileError{}, "FileIdentity": &lite.FileIdentity{}, "FileReply": &lite.FileReply{}, "FileRequest": &lite.FileRequest{},
	"FileStat": &lite.FileStat{}, "FollowRequest": &lite.FollowRequest{}, "FollowResponse": &lite.FollowResponse{}, "HelloRequest": &lite.HelloRequest{},
	"HelloResponse": &lite.HelloResponse{}, "HostMount": &lite.HostMount{}, "InTransfer": &lite.InTransfer{}, "IncarnationNews": &lite.IncarnationNews{},
	"LookRequest": &lite.LookRequest{}, "LookResponse": &lite.LookResponse{}, "OutTransfer": &lite.OutTransfer{}, "PauseRequest": &lite.PauseRequest{},
	"PauseResponse": &lite.PauseResponse{}, "Probe": &lite.Probe{}, "Probes": &lite.Probes{}, "Process": &lite.Process{}, "ProcessesRequest": &lite.ProcessesRequest{}, "ProcessesResponse": &lite.ProcessesResponse{}, "ReadTransfer": &lite.ReadTransfer{},
	"RecordedRequest": &lite.RecordedRequest{}, "ReleaseRequest": &lite.ReleaseRequest{}, "ReleaseResponse": &lite.ReleaseResponse{},
	"ResizeRequest": &lite.ResizeRequest{}, "ResizeResponse": &lite.ResizeResponse{}, "SeenFile": &lite.SeenFile{}, "SignalRequest": &lite.SignalRequest{},
	"SignalResponse": &lite.SignalResponse{}, "StartRequest": &lite.StartRequest{}, "StartResponse": &lite.StartResponse{}, "TransferEnd": &lite.TransferEnd{},
	"TransferRequest": &lite.TransferRequest{}, "TransferResponse": &lite.TransferResponse{}, "WatchBatch": &lite.WatchBatch{}, "WatchRequest": &lite.WatchRequest{},
	"WatchResponse": &lite.WatchResponse{}, "WatchTransfer": &lite.WatchTransfer{}, "WorkScan": &lite.WorkScan{}, "WriteStdinRequest": &lite.WriteStdinRequest{},
	"WriteStdinResponse": &lite.WriteStdinResponse{}, "WriteTransfer": &lite.WriteTransfer{},
}

// The daemon encodes with the usual library, the supervisor with this package. Any message,
// through both, is the same again.
func TestTheUsualLibraryReadsWhatThisPackageWrites(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, file := range []protoreflect.FileDescriptor{guestv1.File_guest_v1_agent_proto, guestv1.File_guest_v1_files_proto, guestv1.File_guest_v1_supervisor_proto} {
		for i := range file.Messages().Len() {
			kind := file.Messages().Get(i)
			m := messages[kind.Name()]
			if m == nil {
				t.Errorf("%s is not tested", kind.Name())
				continue
			}
			for range 200 {
				want := dynamicpb.NewMessage(kind)
				fill(random, want, 0)
				raw, err := proto.Marshal(want)
				if err != nil {
					t.Fatal(err)
				}
				m.Reset()
				if err := m.UnmarshalVT(raw); err != nil {
					t.Fatalf("%s: %v", kind.Name(), err)
				}
				again, err := m.MarshalVT()
				if err != nil || len(again) != m.SizeVT() {
					t.Fatalf("%s: %d bytes, size %d: %v", kind.Name(), len(again), m.SizeVT(), err)
				}
				got := dynamicpb.NewMessage(kind)
				if err := proto.Unmarshal(again, got); err != nil || !proto.Equal(got, want) {
					t.Fatalf("%s:\nwas %v\nis  %v\n%v", kind.Name(), want, got, err)
				}
			}
		}
	}
}

// The status files of a sandbox, and the socket's callers, may hold anything.
func TestDamagedMessagesAreReadOrRefused(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, kind := range []protoreflect.MessageDescriptor{
		(&guestv1.StartRequest{}).ProtoReflect().Descriptor(), (&guestv1.ExecRecord{}).ProtoReflect().Descriptor(), (&guestv1.TransferRequest{}).ProtoReflect().Descriptor(),
	} {
		refused := 0
		for range 5000 {
			whole := dynamicpb.NewMessage(kind)
			fill(random, whole, 0)
			raw, err := proto.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			for range 1 + random.IntN(3) {
				if len(raw) > 0 {
					raw[random.IntN(len(raw))] = byte(random.Uint32())
				}
			}
			m := messages[kind.Name()]
			m.Reset()
			if m.UnmarshalVT(raw[:random.IntN(len(raw)+1)]) != nil { // it must not panic
				refused++
			}
		}
		if refused == 0 {
			t.Errorf("no damaged %s was refused", kind.Name())
		}
	}
}

// fill sets about half of the fields of a message.
func fill(random *rand.Rand, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		nested := f.Message() != nil && !f.IsMap()
		if random.IntN(2) == 0 || nested && depth > 3 {
			continue
		}
		switch {
		case f.IsMap():
			for range random.IntN(4) {
				m.Mutable(f).Map().Set(value(random, f.MapKey()).MapKey(), value(random, f.MapValue()))
			}
		case f.IsList():
			for list, left := m.Mutable(f).List(), random.IntN(4); left > 0; left-- {
				if nested {
					fill(random, list.AppendMutable().Message(), depth+1)
				} else {
					list.Append(value(random, f))
				}
			}
		case nested:
			fill(random, m.Mutable(f).Message(), depth+1)
		default:
			m.Set(f, value(random, f))
		}
	}
}

// value returns a value of a field that is no message. Every other one is a default.
func value(random *rand.Rand, f protoreflect.FieldDescriptor) protoreflect.Value {
	n := random.Uint64() >> random.IntN(64) * uint64(random.IntN(2))
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n != 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(n)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(n)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString([]string{"", "a", "ä and more"}[n%3])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([][]byte{nil, {0}, {0xff, 0xfe}}[n%3])
	}
	panic("a field of a kind that is new here: " + f.Kind().String())
}
