package model

import (
	"encoding/json"
	"net/http"
	"strings"
)

// generateRequest is what the model reads of a request of Gemini CLI.
type generateRequest struct {
	Contents []struct {
		Parts []struct {
			FunctionResponse *struct {
				Name     string
				Response json.RawMessage
			}
		}
	}
	Tools []struct {
		FunctionDeclarations []struct{ Name string }
	}
	GenerationConfig struct{ ResponseMimeType string }
}

// calls are the tool calls of the conversation.
func (r generateRequest) calls() []call {
	var all []call
	for _, c := range r.Contents {
		for _, p := range c.Parts {
			if p.FunctionResponse == nil {
				continue
			}
			var result struct{ Output, Error string }
			text := string(p.FunctionResponse.Response)
			if json.Unmarshal(p.FunctionResponse.Response, &result) == nil && result.Output+result.Error != "" {
				text = result.Output + result.Error
			}
			all = append(all, call{tool: p.FunctionResponse.Name, result: text})
		}
	}
	return all
}

func (s *Server) generate(w http.ResponseWriter, r *http.Request) {
	var in generateRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, method, _ := strings.Cut(r.PathValue("call"), ":")
	if method == "countTokens" {
		_, _ = w.Write([]byte(`{"totalTokens": 1}`))
		return
	}
	works := false
	for _, t := range in.Tools {
		for _, f := range t.FunctionDeclarations {
			works = works || f.Name == "replace"
		}
	}
	calls := in.calls()
	at := next(calls, true)
	parts := []any{map[string]any{"text": "{}"}} // Gemini CLI also asks for decisions, as JSON
	if works {
		s.Log("generate: %d calls, step %d", len(calls), at)
		words, tool, input := geminiStep(at, calls)
		parts = []any{map[string]any{"text": words}}
		if tool != "" {
			parts = append(parts, map[string]any{"functionCall": map[string]any{"name": tool, "args": input}})
		}
	}
	answer := func(parts []any, last bool) map[string]any {
		candidate := map[string]any{"index": 0, "content": map[string]any{"role": "model", "parts": parts}}
		if last {
			candidate["finishReason"] = "STOP"
		}
		return map[string]any{"candidates": []any{candidate}, "usageMetadata": map[string]any{"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}
	}
	if method != "streamGenerateContent" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer(parts, true))
		return
	}
	out := newStream(w)
	out.data(answer(parts[:1], len(parts) == 1 && (!works || at != repair)))
	if works {
		s.hold(r, at)
	}
	if len(parts) > 1 {
		out.data(answer(parts[1:], true))
	}
}

// geminiStep is a step in the tools of Gemini CLI.
func geminiStep(at step, calls []call) (words, tool string, input map[string]any) {
	words, tool, input = claudeStep(at, calls)
	switch tool {
	case "Bash":
		tool = "run_shell_command"
	case "Read":
		tool = "read_file"
	case "Edit":
		tool, input["instruction"] = "replace", "Add instead of subtracting"
	}
	return words, tool, input
}

// data sends an event without a name.
func (s stream) data(data map[string]any) {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // maps of plain values
	}
	_, _ = s.w.Write([]byte("data: " + string(text) + "\n\n"))
	if f, ok := s.w.(http.Flusher); ok {
		f.Flush()
	}
}
