package admission

import (
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// FuzzSandboxFile reads any bytes as a sandbox file.
func FuzzSandboxFile(f *testing.F) {
	for _, seed := range []string{
		"image: base\nenvs: {A: b}\ncommand: [a]\nidle_ttl: 60s\n", "a: &a [*a]\n", "image: a\n---\nimage: b\n",
		"{{{{{{{{", "- - - - -", "? ? ?", "!!binary x", "image: !!str\n", "%YAML 9.9\n---\n", "\xef\xbb\xbfimage: x", "a: 'b\n\n",
	} {
		f.Add([]byte(seed))
	}
	c := bare(f)
	f.Fuzz(func(t *testing.T, file []byte) {
		spec, err := accepted(c.merge(&agboxv1.CreateSandboxRequest{ConfigYaml: file}))
		if err == nil && spec.GetImage() == "" {
			t.Error("a spec without an image is accepted")
		}
	})
}

// FuzzSandboxRequest reads any bytes as a request to create a sandbox.
func FuzzSandboxRequest(f *testing.F) {
	raw, err := proto.Marshal(&agboxv1.CreateSandboxRequest{
		SandboxId: "a", ConfigYaml: []byte("image: &a [*a]\n"), CreateSpec: &agboxv1.CreateSpec{Image: "i", Envs: map[string]string{"": ""}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	c := bare(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		req := new(agboxv1.CreateSandboxRequest)
		if proto.Unmarshal(raw, req) != nil {
			return // gRPC refuses it
		}
		spec, err := accepted(c.merge(req))
		if err == nil && spec.GetImage() == "" {
			t.Error("a spec without an image is accepted")
		}
	})
}
