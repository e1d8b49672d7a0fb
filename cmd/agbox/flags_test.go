package main

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// twoBoxes serves a sandbox demo with a label and commands, and one without a name.
func twoBoxes(t *testing.T) string {
	t.Helper()
	d, socket := serveScripted(t)
	for _, words := range []string{
		"create --id first1 demo --image registry/good:1 --label team=red --label env=test", "create --id second2 --image good --label team=blue",
		"exec -d --name job first1 wait", "exec -d first1 exit 3", "exec -d --name other second2 exit 0", "stop second2",
	} {
		if code, _, errs := agbox(t, socket, strings.Fields(words)...); code != 0 {
			t.Fatalf("%s: code %d, %s", words, code, errs)
		}
	}
	for i, id := range []string{"run1", "end1", "end2"} {
		d.execs[i].ExecId = id
	}
	return socket
}

func TestFiltersChooseItems(t *testing.T) {
	socket := twoBoxes(t)
	for words, want := range map[string]string{
		"ls -q --filter name=em":                              "first1",
		"ls -q --filter id=sec":                               "second2",
		"ls -q --filter state=stopped":                        "second2",
		"ls -q --filter status=ready --filter status=stopped": "second2 first1",
		"ls -q --filter image=registry/good":                  "first1",
		"ls -q --filter ancestor=good":                        "second2",
		"ls -q --filter label=team":                           "second2 first1",
		"ls -q --filter label=team=red --filter label=env":    "first1",
		"ls -q --filter label=team=blue --filter label=env":   "",
		"ls -q --filter name=demo --filter state=failed":      "",
		"ps -q --filter sandbox=demo":                         "run1",
		"ps -q --filter state=running":                        "run1",
		"ps -q --filter exit=3":                               "end1",
		"ps -q --filter exited=0":                             "end2",
		"ps -a -q --filter name=o --filter command=exit":      "end2",
		"image ls --filter reference=nope":                    "NAME ID SIZE CREATED",
	} {
		code, out, errs := agbox(t, socket, strings.Fields(words)...)
		if got := strings.Join(strings.Fields(out), " "); code != 0 || sorted(got) != sorted(want) {
			t.Errorf("%s: code %d, %q %q, want %q", words, code, got, errs, want)
		}
	}
	for _, words := range []string{"ls --filter nope=1", "ps --filter state", "image ls --filter name=x"} {
		if code, _, errs := agbox(t, socket, strings.Fields(words)...); code != codeUsage || !strings.Contains(errs, "The keys are ") {
			t.Errorf("%s: code %d, %q", words, code, errs)
		}
	}
}

func sorted(words string) string {
	list := strings.Fields(words)
	if len(list) == 2 && list[0] > list[1] {
		list[0], list[1] = list[1], list[0]
	}
	return strings.Join(list, " ")
}

func TestFiltersOfImagesAndAgents(t *testing.T) {
	image := &agboxv1.Image{Id: "sha256:abc", Names: []string{"debian:12", "r.example:5000/x/y:1"}}
	for text, want := range map[string]bool{
		"reference=debian": true, "reference=deb*": true, "reference=debian:1?": true, "reference=r.example:5000/x/y": true, "reference=deb": false,
		"id=ab": true, "id=sha256:abc": true, "id=b": false, "dangling=false": true, "dangling=true": false,
	} {
		if list, err := (&listing[*agboxv1.Image]{keys: imageFilters, filters: []string{text}}).filtered([]*agboxv1.Image{image}); err != nil || len(list) == 1 != want {
			t.Errorf("%s: %v, %v", text, list, err)
		}
	}
	agent := &agboxv1.Agent{AgentId: "a-1", Name: "fixer", Word: "PAUSED/CRASH", Class: "coder", SandboxId: "b", Parent: "init"}
	for text, want := range map[string]bool{
		"state=paused/crash": true, "state=RUNNING": false, "class=coder": true, "class=code": false, "name=fix": true, "sandbox=b": true, "parent=init": true, "id=a-": true, "id=-": false,
	} {
		if list, err := (&listing[*agboxv1.Agent]{keys: agentFilters, filters: []string{text}}).filtered([]*agboxv1.Agent{agent}); err != nil || len(list) == 1 != want {
			t.Errorf("%s: %v, %v", text, list, err)
		}
	}
	if !isState("ready (degraded)", "degraded") || !isState("ready (degraded)", "ready") || isState("ready (degraded)", "stopped") {
		t.Error("a state with a remark")
	}
}

func TestTemplatesChooseWhatIsPrinted(t *testing.T) {
	socket := twoBoxes(t)
	for _, c := range []struct{ words, template, want string }{
		{"ls --filter name=demo", "{{.name}} {{.state}} {{.labels.team}}", "demo ready red\n"},
		{"ps --filter exit=3", `{{.exec_id}}\t{{.exit_code}}`, "end1\t3\n"},
		{"ps", "{{.exec_id}}[{{.exit_code}}]", "run1[]\n"},
		{"ls --filter name=demo", `table {{.name}}\t{{.image}}`, "NAME   IMAGE\ndemo   registry/good:1\n"},
		{"inspect demo", "{{.sandbox.name}}", "demo\n"},
		{"image ls", "{{.size_bytes}}", "1000000\n"},
		{"ls --filter name=nope", "{{.nope}}", ""},
	} {
		code, out, errs := agbox(t, socket, append(strings.Fields(c.words), "--format", c.template)...)
		if code != 0 || out != c.want {
			t.Errorf("%s %s: code %d, %q %q", c.words, c.template, code, out, errs)
		}
	}
	for template, want := range map[string]string{"{{.nam}}": `there is no field "nam"; the fields are active_execs,`, "{{.name": "unclosed action"} {
		if code, out, errs := agbox(t, socket, "ls", "--format", template); code != codeUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q %q", template, code, out, errs)
		}
	}
	if _, out, _ := agbox(t, socket, "ls", "--format", "table"); !strings.HasPrefix(out, "NAME   ID") {
		t.Errorf("%q", out)
	}
	if _, out, _ := agbox(t, socket, "ls", "--format", "json"); strings.Count(out, "\n") != 2 || !strings.HasPrefix(out, "{") {
		t.Errorf("%q", out)
	}
}
