package contract

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// publishedGo is the import path of the package that is generated from the table. It is no
// folder of this repository: go builds it from an overlay.
const publishedGo = "github.com/agbox/agbox/e2e/contract/published"

// TestBothSDKsInOneProgram links our Go packages and one for the published table into one
// program. Two packages that register the same proto package end a program at its start.
func TestBothSDKsInOneProgram(t *testing.T) {
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(stdin []byte, name string, args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Stdin = root, strings.NewReader(string(stdin))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.String())
		}
		return out
	}
	plugin, program := filepath.Join(dir, "protoc-gen-go"), filepath.Join(dir, "bothsdks")
	run(nil, "go", "build", "-o", plugin, "google.golang.org/protobuf/cmd/protoc-gen-go")
	generated := filepath.Join(dir, "published.pb.go")
	if err := os.WriteFile(generated, generate(t, func(request []byte) []byte { return run(request, plugin) }), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, "e2e/contract/published/published.pb.go"): generated}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	run(nil, "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, "./e2e/contract/testdata/bothsdks")
	if got := string(run(nil, program, in.Socket())); got != "both work\n" {
		t.Errorf("the program says %q", got)
	}
}

// generate returns the Go package of the published table, whose file has the path of one of
// ours. plugin is protoc-gen-go.
func generate(t *testing.T, plugin func(request []byte) []byte) []byte {
	t.Helper()
	file := publishedFile(t)
	file.Name = proto.String("agbox/v1/service.proto")
	file.Options = &descriptorpb.FileOptions{GoPackage: proto.String(publishedGo + ";published")}
	raw, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file.GetName()}, Parameter: proto.String("paths=source_relative"),
		ProtoFile: []*descriptorpb.FileDescriptorProto{
			protodesc.ToFileDescriptorProto(durationpb.File_google_protobuf_duration_proto),
			protodesc.ToFileDescriptorProto(timestamppb.File_google_protobuf_timestamp_proto), file,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	answer := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(plugin(raw), answer); err != nil {
		t.Fatal(err)
	}
	if answer.GetError() != "" || len(answer.GetFile()) != 1 {
		t.Fatalf("protoc-gen-go: %v", answer)
	}
	return []byte(answer.GetFile()[0].GetContent())
}
