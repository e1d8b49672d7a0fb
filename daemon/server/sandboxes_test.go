package server

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestATextThatCanBeNoIDAndNoNameIsRefusedInWords(t *testing.T) {
	for kind, texts := range map[agboxv1.RefKind]map[string]string{
		agboxv1.RefKind_REF_KIND_SANDBOX: {"../x": "is not an id or a name", "a b": "is not an id or a name", "a\nb": "is not an id or a name", "a/b": "is not an id or a name", "": "Give a sandbox", strings.Repeat("a", 201): "200 characters"},
		agboxv1.RefKind_REF_KIND_EXEC:    {"demo/main/x": "SANDBOX/NAME", "../../etc/passwd": "SANDBOX/NAME", "/x": "SANDBOX/NAME", "x/": "SANDBOX/NAME", "": "Give an exec"},
		agboxv1.RefKind_REF_KIND_AGENT:   {"": "Give an agent", strings.Repeat("a", 201): "200 characters"},
	} {
		for text, want := range texts {
			_, err := new(sandboxCalls).Resolve(t.Context(), &agboxv1.ResolveRequest{Kind: kind, Text: text})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", text, err, want)
			}
		}
	}
}
