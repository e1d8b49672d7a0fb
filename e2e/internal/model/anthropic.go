package model

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// messagesRequest is what the model reads of a request of Claude Code.
type messagesRequest struct {
	Model    string
	Tools    []struct{ Name string }
	Stream   bool
	Messages []struct {
		Role    string
		Content json.RawMessage
	}
}

// block is a part of a message.
type block struct {
	Type      string
	ID        string
	Name      string
	ToolUseID string `json:"tool_use_id"`
	Text      string
	Content   json.RawMessage
}

// text is the text of a content, which is a string or a list of blocks.
func text(content json.RawMessage) string {
	var plain string
	if json.Unmarshal(content, &plain) == nil {
		return plain
	}
	var blocks []block
	if json.Unmarshal(content, &blocks) != nil {
		return string(content)
	}
	var b strings.Builder
	for _, one := range blocks {
		b.WriteString(one.Text)
	}
	return b.String()
}

// calls are the tool calls of the conversation.
func (r messagesRequest) calls() []call {
	names := map[string]string{}
	var all []call
	for _, m := range r.Messages {
		var blocks []block
		if json.Unmarshal(m.Content, &blocks) != nil {
			continue
		}
		for _, b := range blocks {
			switch b.Type {
			case "tool_use":
				names[b.ID] = b.Name
			case "tool_result":
				all = append(all, call{tool: names[b.ToolUseID], result: text(b.Content)})
			}
		}
	}
	return all
}

func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	var in messagesRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	calls := in.calls()
	at, works, opencode := next(calls, true), false, false
	for _, t := range in.Tools {
		works = works || strings.EqualFold(t.Name, "edit")
		opencode = opencode || t.Name == "edit"
	}
	words, tool, input := "A title", "", map[string]any(nil) // Claude Code also asks for titles, without tools
	if works {
		s.Log("messages: %d calls, step %d", len(calls), at)
		if words, tool, input = claudeStep(at, calls); opencode {
			tool, input = inOpencode(tool, input)
		}
	}
	if !in.Stream {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"id": "msg_1", "type": "message", "role": "assistant", "model": in.Model, "stop_reason": "end_turn", "stop_sequence": nil,
			"content": []any{map[string]any{"type": "text", "text": words}}, "usage": map[string]any{"input_tokens": 1, "output_tokens": 1},
		})
		return
	}
	out := newStream(w)
	out.send(map[string]any{"type": "message_start", "message": map[string]any{
		"id": fmt.Sprintf("msg_%d", len(calls)), "type": "message", "role": "assistant", "model": in.Model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": map[string]any{"input_tokens": 1, "output_tokens": 1},
	}})
	out.block(0, map[string]any{"type": "text", "text": ""}, "text_delta", "text", words, func() {
		if works {
			s.hold(r, at)
		}
	})
	reason := "end_turn"
	if tool != "" {
		reason = "tool_use"
		arguments, _ := json.Marshal(input)
		out.block(1, map[string]any{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", len(calls)), "name": tool, "input": map[string]any{}},
			"input_json_delta", "partial_json", string(arguments), func() {})
	}
	out.send(map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": 9}})
	out.send(map[string]any{"type": "message_stop"})
}

// block sends a part of a message in two halves, with middle between them.
func (s stream) block(index int, start map[string]any, kind, field, content string, middle func()) {
	s.send(map[string]any{"type": "content_block_start", "index": index, "content_block": start})
	first, second := halves(content)
	s.send(map[string]any{"type": "content_block_delta", "index": index, "delta": map[string]any{"type": kind, field: first}})
	middle()
	s.send(map[string]any{"type": "content_block_delta", "index": index, "delta": map[string]any{"type": kind, field: second}})
	s.send(map[string]any{"type": "content_block_stop", "index": index})
}

// claudeStep is a step in the tools of Claude Code.
func claudeStep(at step, calls []call) (words, tool string, input map[string]any) {
	path := folder(calls) + "/" + File
	switch at {
	case runTest:
		return "I run the test.", "Bash", map[string]any{"command": TestCommand, "description": "Run the test"}
	case readFile:
		return "The test fails, so I read the file.", "Read", map[string]any{"file_path": path}
	case repair:
		return "The sign is wrong, so I change it.", "Edit", map[string]any{"file_path": path, "old_string": Wrong, "new_string": Right}
	case done:
		return Done, "", nil
	}
	return lost(calls), "", nil
}

// inOpencode is a call of a tool of Claude Code as a call of opencode.
func inOpencode(tool string, input map[string]any) (string, map[string]any) {
	out := map[string]any{}
	for name, value := range input {
		switch name {
		case "file_path":
			name = "filePath"
		case "old_string":
			name = "oldString"
		case "new_string":
			name = "newString"
		}
		out[name] = value
	}
	return strings.ToLower(tool), out
}

// lost is what the model says if it does not understand a result.
func lost(calls []call) string {
	if len(calls) == 0 {
		return "I do not know what to do."
	}
	return "I do not understand this result: " + calls[len(calls)-1].result
}
