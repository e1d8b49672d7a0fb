package model

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// responsesRequest is what the model reads of a request of Codex.
type responsesRequest struct {
	Model string
	Tools []offered
	Input []struct {
		Type string
		// Tools are in an item of type additional_tools.
		Tools  []offered
		Name   string
		CallID string `json:"call_id"`
		Output json.RawMessage
	}
}

// offered is a tool, or a namespace of tools.
type offered struct {
	Type, Name string
	Tools      []offered
}

// names are the names of all tools that Codex offers.
func (r responsesRequest) names() []string {
	var names []string
	var add func([]offered)
	add = func(tools []offered) {
		for _, t := range tools {
			names = append(names, t.Name)
			add(t.Tools)
		}
	}
	add(r.Tools)
	for _, item := range r.Input {
		add(item.Tools)
	}
	return names
}

// calls are the tool calls of the conversation.
func (r responsesRequest) calls() []call {
	names := map[string]string{}
	var all []call
	for _, item := range r.Input {
		switch item.Type {
		case "function_call", "custom_tool_call":
			names[item.CallID] = item.Name
		case "function_call_output", "custom_tool_call_output":
			all = append(all, call{tool: names[item.CallID], result: text(item.Output)})
		}
	}
	return all
}

func (s *Server) responses(w http.ResponseWriter, r *http.Request) {
	var in responsesRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	calls := in.calls()
	at := next(calls, false)
	s.Log("responses: %d calls, step %d, tools %v", len(calls), at, in.names())
	words, item := codexStep(at, calls, in)

	out := newStream(w)
	id := fmt.Sprintf("resp_%d", len(calls))
	out.send(map[string]any{"type": "response.created", "response": map[string]any{"id": id}})
	message := map[string]any{"type": "message", "role": "assistant", "id": "msg_" + id, "content": []any{}}
	out.send(map[string]any{"type": "response.output_item.added", "output_index": 0, "item": message})
	first, second := halves(words)
	delta := map[string]any{"type": "response.output_text.delta", "item_id": "msg_" + id, "output_index": 0, "content_index": 0, "delta": first}
	out.send(delta)
	s.hold(r, at)
	delta["delta"] = second
	out.send(delta)
	message["content"] = []any{map[string]any{"type": "output_text", "text": words}}
	out.send(map[string]any{"type": "response.output_item.done", "output_index": 0, "item": message})
	if item != nil {
		item["call_id"] = "call_" + id
		out.send(map[string]any{"type": "response.output_item.done", "output_index": 1, "item": item})
	}
	out.send(map[string]any{"type": "response.completed", "response": map[string]any{
		"id": id, "usage": map[string]any{"input_tokens": 1, "input_tokens_details": nil, "output_tokens": 1, "output_tokens_details": nil, "total_tokens": 2},
	}})
}

// codexStep is a step in the tools of Codex; item is nil if the model is done.
func codexStep(at step, calls []call, in responsesRequest) (words string, item map[string]any) {
	switch at {
	case runTest:
		return "I run the test.", in.shell(TestCommand)
	case repair:
		patch := "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: " + File + "\n@@\n-echo $((" + Wrong + "))\n+echo $((" + Right + "))\n*** End Patch\nEOF"
		return "The sign is wrong, so I change it.", in.shell(patch)
	case done:
		return Done, nil
	}
	return lost(calls), nil
}

// shell is a call of the tool that runs commands. Which one there is depends on the
// version: a program in JavaScript that calls tools, or the tools themselves.
func (r responsesRequest) shell(command string) map[string]any {
	quoted, _ := json.Marshal(command)
	names := r.names()
	switch {
	case slices.Contains(names, "exec"):
		return map[string]any{"type": "custom_tool_call", "name": "exec", "input": "text((await tools.exec_command({cmd: " + string(quoted) + "})).output)"}
	case slices.Contains(names, "exec_command"):
		return map[string]any{"type": "function_call", "name": "exec_command", "arguments": `{"cmd": ` + string(quoted) + `}`}
	}
	return map[string]any{"type": "function_call", "name": "shell_command", "arguments": `{"command": ` + string(quoted) + `}`}
}
