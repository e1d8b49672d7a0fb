package agentcli

import (
	"bufio"
	"bytes"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// listen answers each request with the same line, and passes the requests on.
func listen(t *testing.T, answer string) (env []string, requests <-chan string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(c).ReadString('\n')
			got <- line
			_, _ = c.Write([]byte(answer))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return []string{"X=y", "AGBOX_AGENT_SOCKET=" + path, "AGBOX_TOKEN=tok"}, got
}

func run(t *testing.T, env []string, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr strings.Builder
	code = Run(t.Context(), args, env, strings.NewReader(`{"a": 1}`), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestRequests(t *testing.T) {
	env, requests := listen(t, `{"ok":true,"result":{}}`+"\n")
	for _, row := range []struct {
		args []string
		want string
		out  bool
	}{
		{[]string{"hello"}, `{"op":"hello","token":"tok"}`, true},
		{[]string{"state", "READY"}, `{"op":"state","state":"READY","token":"tok"}`, false},
		{[]string{"beat"}, `{"op":"beat","token":"tok"}`, false},
		{[]string{"usage", "5", "6"}, `{"input_tokens":5,"op":"usage","output_tokens":6,"token":"tok"}`, false},
		{[]string{"usage", "5", "6", "0.5"}, `{"cost_usd":"0.5","input_tokens":5,"op":"usage","output_tokens":6,"token":"tok"}`, false},
		{[]string{"step"}, `{"op":"step","token":"tok"}`, false},
		{[]string{"step", "3"}, `{"op":"step","steps":3,"token":"tok"}`, false},
		{[]string{"turn"}, `{"op":"turn","token":"tok"}`, false},
		{[]string{"turn", "71.5"}, `{"context_pct":71.5,"op":"turn","token":"tok"}`, false},
		{[]string{"turn", "--checkpoint", "-", "71.5"}, `{"bytes":8,"context_pct":71.5,"op":"turn","token":"tok"}`, false},
		{[]string{"context", "90%"}, `{"context_pct":90,"op":"context","token":"tok"}`, false},
		{[]string{"gate", "Bash"}, `{"op":"gate","token":"tok","tool":"Bash"}`, false},
		{[]string{"gate", "--context", "95", "--final", "Write"}, `{"context_pct":95,"final":true,"op":"gate","token":"tok","tool":"Write"}`, false},
		{[]string{"gate", "--llm"}, `{"kind":"llm","op":"gate","token":"tok"}`, false},
		{[]string{"gate", "--llm", "--context", "5", "8000", "0.1"}, `{"context_pct":5,"estimate":{"cost_usd":"0.1","input_tokens":8000},"kind":"llm","op":"gate","token":"tok"}`, false},
		{[]string{"say", "hi\n"}, `{"op":"say","text":"hi\n","token":"tok"}`, false},
		{[]string{"send", "boss", "hi"}, `{"op":"send","text":"hi","to":"boss","token":"tok"}`, false},
		{[]string{"send", "--key", "k", "parent", "-"}, `{"key":"k","op":"send","text":"{\"a\": 1}","to":"parent","token":"tok"}`, false},
		{[]string{"send", "--stream", "news", "hi"}, `{"op":"send","stream":"news","text":"hi","token":"tok"}`, false},
		{[]string{"open", "news"}, `{"op":"open","stream":"news","token":"tok"}`, false},
		{[]string{"close", "news"}, `{"op":"close","stream":"news","token":"tok"}`, false},
		{[]string{"recv"}, `{"op":"recv","token":"tok"}`, false},
		{[]string{"recv", "--timeout", "1.5s", "7"}, `{"after":7,"op":"recv","timeout_ms":1500,"token":"tok"}`, false},
		{[]string{"send", "boss", "<&>"}, `{"op":"send","text":"<&>","to":"boss","token":"tok"}`, false},
		{[]string{"checkpoint", "--kind", "turn", "--turn", "4", "--step", "5", "--resume-point", "x"}, `{"bytes":8,"kind":"turn","op":"checkpoint","resume_point":"x","step":5,"token":"tok","turn":4}`, false},
		{[]string{"checkpoint", "-"}, `{"bytes":8,"op":"checkpoint","token":"tok"}`, false},
		{[]string{"done", "fail", "no"}, `{"message":"no","op":"done","outcome":"fail","token":"tok"}`, false},
		{[]string{"api", "say", `{"text":"x","op":"y","token":"z"}`}, `{"op":"say","text":"x","token":"tok"}`, true},
	} {
		code, out, errs := run(t, env, row.args...)
		if got := <-requests; code != exitOK || got != row.want+"\n" || errs != "" || (out != "") != row.out {
			t.Errorf("%q: %d, request %s, output %q, errors %q; want %s", row.args, code, got, out, errs, row.want)
		}
	}
}

func TestANoticeIsPrintedAtTheEndOfATurn(t *testing.T) {
	env, _ := listen(t, `{"ok":true,"result":{"notice":"Prepare."}}`+"\n")
	if code, out, errs := run(t, env, "turn", "71"); code != exitOK || out != "Prepare.\n" || errs != "" {
		t.Errorf("%d, output %q, errors %q", code, out, errs)
	}
	if _, out, _ := run(t, env, "context", "71"); out != "" {
		t.Errorf("in the middle of a turn: %q", out)
	}
}

// TestATurnThatSavesNothingSaysSo on standard error, where hooks of coding agents may have it.
func TestATurnThatSavesNothingSaysSo(t *testing.T) {
	for answer, says := range map[string]bool{`"stored":0`: true, `"stored":4`: false} {
		env, _ := listen(t, `{"ok":true,"result":{`+answer+`}}`+"\n")
		if code, out, errs := run(t, env, "turn", "20"); code != exitOK || out != "" || strings.Contains(errs, "No checkpoint came with it") != says {
			t.Errorf("%s: %d, output %q, errors %q", answer, code, out, errs)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, row := range []struct {
		answer string
		code   int
	}{
		{`{"ok":false,"error":{"code":"NOT_ALLOWED","message":"No."}}` + "\n", exitRefused},
		{`{"ok":false,"error":{"code":"DRAINING","message":"No."}}` + "\n", exitDrain},
		{`{"ok":false,"error":{"code":"FENCED","message":"No."}}` + "\n", exitFenced},
		{`{"ok":false,"error":{"code":"BUDGET_EXHAUSTED","message":"No."}}` + "\n", exitFenced},
		{`{"ok":false,"error":{"code":"UNKNOWN_OP","message":"No."}}` + "\n", exitUnknown},
		{`{"ok":false,"error":{"code":"WRONG_TOKEN","message":"No."}}` + "\n", exitUnknown},
		{"no JSON\n", exitFailed},
		{"", exitFailed},
	} {
		env, _ := listen(t, row.answer)
		if code, _, errs := run(t, env, "beat"); code != row.code || errs == "" {
			t.Errorf("the answer %q gives %d, %q; want %d", row.answer, code, errs, row.code)
		}
	}
	for _, row := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitOK, ""},
		{[]string{"--help"}, exitOK, ""},
		{[]string{"hello"}, exitUnknown, "not the program of an agent"},
		{[]string{"dance"}, exitFailed, "no command"},
		{[]string{"state"}, exitFailed, "1 to 1 arguments"},
		{[]string{"usage", "a", "1"}, exitFailed, "no number"},
		{[]string{"beat", "x"}, exitFailed, "beat takes only --every"},
		{[]string{"context"}, exitFailed, "1 to 1 arguments"},
		{[]string{"turn", "NaN"}, exitFailed, "no percentage"},
		{[]string{"turn", "--checkpoint"}, exitFailed, "needs a FILE"},
		{[]string{"turn", "--checkpoint", "/dev/null"}, exitFailed, "is empty"},
		{[]string{"gate"}, exitFailed, "needs the name of one TOOL"},
		{[]string{"gate", "--final"}, exitFailed, "needs the name of one TOOL"},
		{[]string{"gate", "--context"}, exitFailed, "needs a PERCENT"},
		{[]string{"gate", "--context", "full", "Bash"}, exitFailed, "no percentage"},
		{[]string{"gate", "--fast", "Bash"}, exitFailed, "no flag"},
		{[]string{"gate", "--llm", "--final"}, exitFailed, "at most two arguments"},
		{[]string{"gate", "--llm", "many"}, exitFailed, "no number"},
		{[]string{"checkpoint", "--turn"}, exitFailed, "needs a value"},
		{[]string{"checkpoint", "--turn", "x"}, exitFailed, "no number"},
		{[]string{"checkpoint", "--size", "x"}, exitFailed, "no option"},
		{[]string{"checkpoint", "a", "b"}, exitFailed, "one FILE"},
		{[]string{"checkpoint", "/nowhere"}, exitFailed, "no such file"},
		{[]string{"api"}, exitFailed, "needs an OP"},
		{[]string{"api", "x", "null"}, exitFailed, "no JSON object"},
	} {
		if code, _, errs := run(t, nil, row.args...); code != row.code || !strings.Contains(errs, row.says) {
			t.Errorf("%q: %d, %q; want %d, %q", row.args, code, errs, row.code, row.says)
		}
	}
	if code, _, errs := run(t, []string{"AGBOX_AGENT_SOCKET=/nowhere", "AGBOX_TOKEN=x"}, "beat"); code != exitFailed || !strings.Contains(errs, "cannot be asked") {
		t.Errorf("without a socket: %d, %q", code, errs)
	}
	if !Is("/.agbox/run/bin/agbox-agent") || Is("/.agbox/init") {
		t.Error("the name of the command is not recognized")
	}
}

func TestErrors(t *testing.T) {
	for _, row := range []struct {
		args []string
		ms   any
		ok   bool
	}{
		{[]string{"no"}, nil, true}, {[]string{"--retry-after", "30s", "no"}, int64(30_000), true},
		{[]string{"--retry-after", "soon", "no"}, nil, false}, {[]string{"--retry-after", "30s"}, nil, false}, {nil, nil, false},
	} {
		request, err := parseError(row.args)
		if (err == nil) != row.ok || row.ok && (request["text"] != "no" || request["retry_after_ms"] != row.ms) {
			t.Errorf("%q: %v, %v", row.args, request, err)
		}
	}
}

// TestEveryCommandTakesHelp: it prints what the help says about the command, and asks for nothing.
// Without a socket, another command fails.
func TestEveryCommandTakesHelp(t *testing.T) {
	named := make(map[string]bool)
	listed, _, _ := strings.Cut(help(), "\nExit codes:")
	for _, m := range regexp.MustCompile(`(?m)(?:^  agbox-agent |, )([a-z-]+) `).FindAllStringSubmatch(listed, -1) {
		named[m[1]] = true
	}
	for _, c := range commands {
		command := c.name
		if !named[command] {
			t.Errorf("the help does not have %s", command)
		}
		for _, line := range []string{command + " --help", command + " -h"} {
			var out, errs bytes.Buffer
			code := Run(t.Context(), strings.Fields(line), nil, strings.NewReader(""), &out, &errs)
			if code != 0 || errs.Len() > 0 || !strings.Contains(out.String(), command+" ") || strings.Contains(out.String(), "Exit codes") {
				t.Errorf("%s: code %d, %q, %q", line, code, &out, &errs)
			}
		}
	}
}

func TestHelpIsTakenOnlyFromTheCommandItself(t *testing.T) {
	for line, want := range map[string]bool{
		"acquire db --help": true, "acquire --wait -h": true, "release -h": true, "recv --no-wait --help": true, "spawn --help": true,
		"spawn --name x -- git --help": false, "tool git -- git -h": false, "spawn git --help": false,
		"say tell --help": false, "send init --help": false, "acquire help": false,
	} {
		if got := asksForHelp(strings.Fields(line)); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
	if _, err := parseAcquire([]string{"--exlusive", "db"}); err == nil {
		t.Error("a flag that does not exist is a resource")
	}
}
