package guestv1_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// message is a message of this package.
type message interface {
	MarshalVT() ([]byte, error)
	UnmarshalVT(raw []byte) error
	SizeVT() int
	Reset()
}

// messages has the type of each message of the link.
var messages = map[string]message{
	"AgentBoot": &guestv1.AgentBoot{}, "AgentRequest": &guestv1.AgentRequest{}, "AllotRequest": &guestv1.AllotRequest{}, "AllotResponse": &guestv1.AllotResponse{}, "AnswerRequest": &guestv1.AnswerRequest{}, "AnswerResponse": &guestv1.AnswerResponse{},
	"BootConfig": &guestv1.BootConfig{}, "CallLimits": &guestv1.CallLimits{}, "CancelRequest": &guestv1.CancelRequest{}, "CancelResponse": &guestv1.CancelResponse{},
	"Change": &guestv1.Change{}, "ConfigureRequest": &guestv1.ConfigureRequest{}, "ConfigureResponse": &guestv1.ConfigureResponse{}, "DrainRequest": &guestv1.DrainRequest{}, "DrainResponse": &guestv1.DrainResponse{}, "ExecRecord": &guestv1.ExecRecord{},
	"FileError": &guestv1.FileError{}, "FileIdentity": &guestv1.FileIdentity{}, "FileReply": &guestv1.FileReply{}, "FileRequest": &guestv1.FileRequest{},
	"FileStat": &guestv1.FileStat{}, "FollowRequest": &guestv1.FollowRequest{}, "FollowResponse": &guestv1.FollowResponse{}, "HelloRequest": &guestv1.HelloRequest{},
	"HelloResponse": &guestv1.HelloResponse{}, "HostMount": &guestv1.HostMount{}, "InTransfer": &guestv1.InTransfer{}, "IncarnationNews": &guestv1.IncarnationNews{},
	"LookRequest": &guestv1.LookRequest{}, "LookResponse": &guestv1.LookResponse{}, "OutTransfer": &guestv1.OutTransfer{}, "PauseRequest": &guestv1.PauseRequest{},
	"PauseResponse": &guestv1.PauseResponse{}, "Probe": &guestv1.Probe{}, "Probes": &guestv1.Probes{}, "Process": &guestv1.Process{}, "ProcessesRequest": &guestv1.ProcessesRequest{}, "ProcessesResponse": &guestv1.ProcessesResponse{}, "ReadTransfer": &guestv1.ReadTransfer{},
	"RecordedRequest": &guestv1.RecordedRequest{}, "ReleaseRequest": &guestv1.ReleaseRequest{}, "ReleaseResponse": &guestv1.ReleaseResponse{},
	"ResizeRequest": &guestv1.ResizeRequest{}, "ResizeResponse": &guestv1.ResizeResponse{}, "SeenFile": &guestv1.SeenFile{}, "SignalRequest": &guestv1.SignalRequest{},
	"SignalResponse": &guestv1.SignalResponse{}, "StartRequest": &guestv1.StartRequest{}, "StartResponse": &guestv1.StartResponse{}, "TransferEnd": &guestv1.TransferEnd{},
	"TransferRequest": &guestv1.TransferRequest{}, "TransferResponse": &guestv1.TransferResponse{}, "WatchBatch": &guestv1.WatchBatch{}, "WatchRequest": &guestv1.WatchRequest{},
	"WatchResponse": &guestv1.WatchResponse{}, "WatchTransfer": &guestv1.WatchTransfer{}, "WorkScan": &guestv1.WorkScan{}, "WriteStdinRequest": &guestv1.WriteStdinRequest{},
	"WriteStdinResponse": &guestv1.WriteStdinResponse{}, "WriteTransfer": &guestv1.WriteTransfer{},
	"CallRequest": &guestv1.CallRequest{}, "CallResponse": &guestv1.CallResponse{}, "CallStatus": &guestv1.CallStatus{},
}

// sample is a line of testdata/wire.tsv: the name of a message, its bytes, and its content.
type sample struct {
	kind, content string
	raw           []byte
}

// samples reads messages that the usual library of protobuf encoded, and the requests and
// replies of the library of ttrpc. Supervisors and daemons with these libraries are still
// in use, and so are the files that they wrote. Never change a line; add some for new fields.
func samples(t *testing.T) (list []sample) {
	t.Helper()
	text, err := os.ReadFile("testdata/wire.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		raw, err := base64.StdEncoding.DecodeString(fields[1])
		if err != nil || len(fields) != 3 || messages[fields[0]] == nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, sample{fields[0], fields[2], raw})
	}
	return list
}

// content returns the set fields of a message, by their names in Go.
func content(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return content(v.Elem())
	case reflect.Struct:
		fields := make(map[string]any)
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !v.Field(i).IsZero() {
				fields[f.Name] = content(v.Field(i))
			}
		}
		return fields
	case reflect.Slice:
		if raw, ok := v.Interface().([]byte); ok {
			return raw
		}
		list := make([]any, v.Len())
		for i := range list {
			list[i] = content(v.Index(i))
		}
		return list
	}
	if v.CanInt() {
		return v.Int() // an enum without its name
	}
	return v.Interface()
}

func TestMessagesAreThoseOfTheUsualLibrary(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range samples(t) {
		seen[s.kind] = true
		m := messages[s.kind]
		m.Reset()
		if err := m.UnmarshalVT(s.raw); err != nil {
			t.Errorf("%s: %v", s.kind, err)
			continue
		}
		got, err := json.Marshal(content(reflect.ValueOf(m)))
		if err != nil || string(got) != s.content {
			t.Errorf("%s:\nwas %s\nis  %s\n%v", s.kind, s.content, got, err)
		}
		again, err := m.MarshalVT()
		if err != nil || !bytes.Equal(again, s.raw) || len(again) != m.SizeVT() {
			t.Errorf("%s:\nwas %x\nis  %x, size %d\n%v", s.kind, s.raw, again, m.SizeVT(), err)
		}
	}
	for kind := range messages {
		if !seen[kind] {
			t.Errorf("%s has no sample", kind)
		}
	}
	for _, file := range []string{"agent", "envelope", "files", "supervisor"} {
		text, err := os.ReadFile(file + ".proto")
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range regexp.MustCompile(`(?m)^message (\w+)`).FindAllStringSubmatch(string(text), -1) {
			if messages[kind[1]] == nil {
				t.Errorf("%s is not tested", kind[1])
			}
		}
	}
}

// The status files of a sandbox, and both ends of the socket, may hold anything.
func TestDamagedMessagesAreReadOrRefused(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	refused := 0
	for _, s := range samples(t) {
		for range 100 {
			raw := bytes.Clone(s.raw)
			for range 1 + random.IntN(3) {
				if len(raw) > 0 {
					raw[random.IntN(len(raw))] = byte(random.Uint32())
				}
			}
			m := messages[s.kind]
			m.Reset()
			if m.UnmarshalVT(raw[:random.IntN(len(raw)+1)]) != nil { // it must not panic
				refused++
			}
		}
	}
	if refused == 0 {
		t.Error("no damaged message was refused")
	}
}

// The API and the database refuse text that is not UTF-8, so nothing of the kind may come in.
func TestTextThatIsNotUTF8IsRefused(t *testing.T) {
	for _, m := range []message{
		&guestv1.ExecRecord{BootId: "\xff"}, &guestv1.ExecRecord{Request: &guestv1.RecordedRequest{Command: []string{"a", "\xff"}}},
		&guestv1.LookResponse{Limits: map[string]string{"a": "\xff"}}, &guestv1.LookResponse{Limits: map[string]string{"\xff": "a"}},
		&guestv1.CallResponse{Status: &guestv1.CallStatus{Message: "\xff"}},
	} {
		raw, err := m.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		if m.UnmarshalVT(raw) == nil {
			t.Errorf("%v was accepted", m)
		}
	}
}
