package secrets

import (
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestNamesThatSayThatTheirValueIsSecret(t *testing.T) {
	for _, name := range []string{
		"API_KEY", "APIKEY", "api-key", "myPrivateKey", "AWS_ACCESS_KEY_ID", "GITHUB_TOKEN", "ACCESSTOKEN", "npm.token", "SECRET", "CLIENT_SECRET_2",
		"mysecretthing", "PGPASSWORD", "DB_PASS", "DB_PASSWD", "MYSQL_PWD", "GH_PAT", "PASSPHRASE", "GOOGLE_APPLICATION_CREDENTIALS",
	} {
		if !Named(name) {
			t.Errorf("%s is not taken for secret", name)
		}
	}
	for _, name := range []string{"", "PATH", "PWD", "OLDPWD", "HOME", "KEYBOARD", "TOKENIZERS_PARALLELISM", "PASS", "SSH_AUTH_SOCK", "TERM", "LANG", "PATTERN", "MAX_TOKENS", "KEY", "MONKEY"} {
		if Named(name) {
			t.Errorf("%s is taken for secret", name)
		}
	}
}

func TestASpecIsHiddenAndRevealed(t *testing.T) {
	spec := &agboxv1.CreateSpec{
		Image: "x", SecretEnvs: []string{"URL"},
		Envs: map[string]string{"API_KEY": "k", "URL": "u", "PLAIN": "p", "EMPTY_TOKEN": ""},
		Services: []*agboxv1.ServiceSpec{
			{Name: "plain", Envs: map[string]string{"A": "b"}},
			{Name: "db", Envs: map[string]string{"PGPASSWORD": "pw", "A": "b"}},
		},
	}
	before := proto.CloneOf(spec)
	shown, hidden := HideSpec(spec)
	if !proto.Equal(spec, before) {
		t.Error("the given spec was changed")
	}
	want := proto.CloneOf(spec)
	want.Envs["API_KEY"], want.Envs["URL"], want.Services[1].Envs["PGPASSWORD"] = Placeholder, Placeholder, Placeholder
	if !proto.Equal(shown, want) {
		t.Errorf("shown is %v, want %v", shown, want)
	}
	if whole := RevealSpec(shown, hidden); !proto.Equal(whole, spec) {
		t.Errorf("revealed is %v, want %v", whole, spec)
	}
	if !proto.Equal(shown, want) {
		t.Error("revealing changed what is shown")
	}
}

func TestWithoutSecretsNothingIsCopied(t *testing.T) {
	spec := &agboxv1.CreateSpec{Envs: map[string]string{"A": "b", "TOKEN": ""}}
	if shown, hidden := HideSpec(spec); shown != spec || hidden != nil || RevealSpec(spec, nil) != spec {
		t.Errorf("got %v, %v", shown, hidden)
	}
	req := &agboxv1.CreateExecRequest{EnvOverrides: map[string]string{"A": "b"}}
	if shown, hidden := HideExec(req); shown != req || hidden != nil || RevealExec(req, nil) != req {
		t.Errorf("got %v, %v", shown, hidden)
	}
}

func TestAnExecIsHiddenAndRevealed(t *testing.T) {
	req := &agboxv1.CreateExecRequest{EnvOverrides: map[string]string{"TOKEN": "t", "A": "b", "MARKED": "m"}, SecretEnvs: []string{"MARKED"}}
	shown, hidden := HideExec(req)
	if got := shown.GetEnvOverrides(); got["TOKEN"] != Placeholder || got["MARKED"] != Placeholder || got["A"] != "b" || req.GetEnvOverrides()["TOKEN"] != "t" {
		t.Errorf("shown %v, given %v", got, req.GetEnvOverrides())
	}
	if whole := RevealExec(shown, hidden); !proto.Equal(whole, req) {
		t.Errorf("revealed is %v, want %v", whole, req)
	}
}
