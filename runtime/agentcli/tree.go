package agentcli

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/agbox/agbox/agents/gate"
)

// flagSet makes a set of flags that prints nothing.
func flagSet(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

// parseSpawn makes the request for a child. Without a key it makes one, so that a request that
// is repeated over another link spawns no second agent.
func parseSpawn(args []string) (map[string]any, error) {
	f := flagSet("spawn")
	request, envs := map[string]any{}, map[string]string{}
	for _, name := range [...]string{"name", "class", "title", "model", "ready", "lifetime", "key"} {
		f.Func(name, "", func(text string) error { request[name] = text; return nil })
	}
	f.Func("env", "", func(text string) error {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("write NAME=VALUE")
		}
		envs[name] = value
		return nil
	})
	var after []string
	f.Func("after", "", func(text string) error { after = append(after, text); return nil })
	f.Func("stack", "", func(text string) error { request["stack"] = map[string]any{"name": text}; return nil })
	sandboxFlags(f, request)
	work := f.String("work", "", "")
	tokens, cost := f.Int64("input-tokens", -1, ""), f.String("cost", "", "")
	if err := f.Parse(args); err != nil {
		return nil, fmt.Errorf("spawn: %w; \"agbox-agent help\" shows what there is", err)
	}
	if f.NArg() == 0 {
		return nil, errors.New("spawn needs the agent's COMMAND after --")
	}
	request["command"] = f.Args()
	if len(envs) > 0 {
		request["envs"] = envs
	}
	if len(after) > 0 {
		request["after"] = after
	}
	if request["key"] == nil {
		request["key"] = rand.Text()
	}
	if *work != "" {
		text, err := readUpTo(*work, maxWork)
		if err != nil {
			return nil, err
		}
		request["work"] = string(text)
	}
	budget := map[string]any{}
	if *tokens >= 0 {
		budget["input_tokens"] = *tokens
	}
	if *cost != "" {
		budget["cost_usd"] = *cost
	}
	if len(budget) > 0 {
		request["budget"] = budget
	}
	return request, nil
}

// sandboxFlags are about a sandbox of the child's own.
func sandboxFlags(f *flag.FlagSet, request map[string]any) {
	for _, name := range [...]string{"sandbox", "workspace"} {
		f.Func(name, "", func(text string) error { request[name] = text; return nil })
	}
	limit := func(name string, value any) {
		limits, _ := request["limits"].(map[string]any)
		if limits == nil {
			limits = map[string]any{}
			request["limits"] = limits
		}
		limits[name] = value
	}
	for _, name := range [...]string{"cpu", "memory"} {
		f.Func(name, "", func(text string) error { limit(name, text); return nil })
	}
	f.Func("pids", "", func(text string) error {
		n, err := strconv.ParseUint(text, 10, 32)
		limit("pids", n)
		return err
	})
	f.Func("share-mount", "", func(text string) error {
		target, writable := strings.CutSuffix(text, ":rw")
		mounts, _ := request["share_mounts"].([]map[string]any)
		request["share_mounts"] = append(mounts, map[string]any{"target": target, "writable": writable})
		return nil
	})
	f.Func("share-tool", "", func(text string) error {
		tools, _ := request["share_tools"].([]string)
		request["share_tools"] = append(tools, text)
		return nil
	})
	f.BoolFunc("allow-host", "", func(string) error { request["allow_host"] = true; return nil })
}

func parseWait(args []string) (map[string]any, error) {
	f := flagSet("wait")
	one := f.Bool("any", false, "")
	if err := f.Parse(args); err != nil {
		return nil, fmt.Errorf("wait: %w", err)
	}
	request := map[string]any{"any": *one}
	if f.NArg() > 0 {
		request["agents"] = f.Args()
	}
	return request, nil
}

func parseKill(args []string) (map[string]any, error) {
	f := flagSet("kill")
	mode := f.String("mode", "", "")
	if err := f.Parse(args); err != nil {
		return nil, fmt.Errorf("kill: %w", err)
	}
	if f.NArg() != 1 {
		return nil, errors.New("kill needs one AGENT, an id or a name")
	}
	return map[string]any{"agent": f.Arg(0), "mode": *mode}, nil
}

// showSpawned prints the id of a child.
func showSpawned(got gate.Spawned, stdout io.Writer) error {
	_, err := fmt.Fprintln(stdout, got.AgentID)
	return err
}
