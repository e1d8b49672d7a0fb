// Package secrets hides the values of secret variables from everybody who may read a
// sandbox's description: it takes them out, and package store encrypts them with a key of
// the sandbox, which is a file of its own.
//
// The key is made before the transaction that needs it, and erased right before the event
// SANDBOX_DELETED. Retention removes keys without a sandbox, which creations that failed
// have left. The digest of a request with secrets is an HMAC under the same key.
package secrets

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Placeholder stands for the value of a secret variable wherever it is shown.
const Placeholder = "(secret)"

// Parts of names that say that the value is secret, in upper case.
var (
	// parts may be anywhere in the name.
	parts = []string{"SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY", "ACCESSKEY", "PRIVATEKEY"}
	// words are one of several words of the name: PWD alone is the working directory.
	words = []string{"KEY", "PASS", "PAT", "PWD"}
)

// Named reports whether the name of a variable says that its value is secret. In any case
// of letters, the name contains SECRET, PASSWORD, PASSWD, PASSPHRASE, CREDENTIAL, APIKEY,
// ACCESSKEY or PRIVATEKEY, or one of its words ends in TOKEN, or one of several words is
// KEY, PASS, PAT or PWD. Words are separated by anything that is neither a letter nor a
// digit.
func Named(name string) bool {
	name = strings.ToUpper(name)
	if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) }) {
		return true
	}
	split := strings.FieldsFunc(name, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') })
	return slices.ContainsFunc(split, func(word string) bool {
		return strings.HasSuffix(word, "TOKEN") || len(split) > 1 && slices.Contains(words, word)
	})
}

// Is reports whether a variable is secret: by its name, or because it is marked.
func Is(name string, marked []string) bool { return Named(name) || slices.Contains(marked, name) }

// Names returns the sorted names of the variables that are secret and have a value.
func Names(envs map[string]string, marked []string) []string {
	var names []string
	for name, value := range envs {
		if value != "" && Is(name, marked) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// hide returns the variables with Placeholder for the secret values, and those values; nil
// if there are none. An empty value hides nothing.
func hide(envs map[string]string, marked []string) (shown, hidden map[string]string) {
	for name, value := range envs {
		if value == "" || !Is(name, marked) {
			continue
		}
		if hidden == nil {
			shown, hidden = maps.Clone(envs), make(map[string]string)
		}
		shown[name], hidden[name] = Placeholder, value
	}
	if hidden == nil {
		return envs, nil
	}
	return shown, hidden
}

// HideSpec returns the spec without secret values, and those values. If there are none,
// it returns the spec itself and nil.
func HideSpec(spec *agboxv1.CreateSpec) (*agboxv1.CreateSpec, *storev1.Secrets) {
	shown, hidden := hide(spec.GetEnvs(), spec.GetSecretEnvs())
	values := &storev1.Secrets{Envs: hidden}
	services := make(map[int]map[string]string)
	for i, s := range spec.GetServices() {
		shown, hidden := hide(s.GetEnvs(), s.GetSecretEnvs())
		if hidden == nil {
			continue
		}
		services[i] = shown
		if values.Services == nil {
			values.Services = make(map[string]*storev1.Secrets)
		}
		values.Services[s.GetName()] = &storev1.Secrets{Envs: hidden}
	}
	if hidden == nil && len(services) == 0 {
		return spec, nil
	}
	spec = proto.CloneOf(spec)
	spec.Envs = shown
	for i, envs := range services {
		spec.Services[i].Envs = envs
	}
	return spec, values
}

// RevealSpec returns the spec with the values that HideSpec took out.
func RevealSpec(spec *agboxv1.CreateSpec, values *storev1.Secrets) *agboxv1.CreateSpec {
	if values == nil {
		return spec
	}
	spec = proto.CloneOf(spec)
	spec.Envs = reveal(spec.GetEnvs(), values)
	for _, s := range spec.GetServices() {
		s.Envs = reveal(s.GetEnvs(), values.GetServices()[s.GetName()])
	}
	return spec
}

// HideExec returns the request without secret values, and those values. If there are none,
// it returns the request itself and nil.
func HideExec(req *agboxv1.CreateExecRequest) (*agboxv1.CreateExecRequest, *storev1.Secrets) {
	shown, hidden := hide(req.GetEnvOverrides(), req.GetSecretEnvs())
	if hidden == nil {
		return req, nil
	}
	req = proto.CloneOf(req)
	req.EnvOverrides = shown
	return req, &storev1.Secrets{Envs: hidden}
}

// RevealExec returns the request with the values that HideExec took out.
func RevealExec(req *agboxv1.CreateExecRequest, values *storev1.Secrets) *agboxv1.CreateExecRequest {
	if values == nil {
		return req
	}
	req = proto.CloneOf(req)
	req.EnvOverrides = reveal(req.GetEnvOverrides(), values)
	return req
}

func reveal(envs map[string]string, values *storev1.Secrets) map[string]string {
	if len(values.GetEnvs()) == 0 {
		return envs
	}
	whole := make(map[string]string, len(envs))
	maps.Copy(whole, envs)
	maps.Copy(whole, values.GetEnvs())
	return whole
}
