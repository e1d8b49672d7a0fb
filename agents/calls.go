package agents

import (
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// CallLimits are how long the calls of a program may take. 0 means no limit.
type CallLimits struct {
	Connect, Response, LLMTotal, LLMChunk, Tool time.Duration
	// Tools has the limits of tools with a name.
	Tools map[string]time.Duration
}

// callsOf returns the limits of a spec with every default, rows 73 to 76 of the
// requirements.
func callsOf(c *agboxv1.AgentCalls) CallLimits {
	limits := CallLimits{
		Connect:  length(c.GetConnect(), 30*time.Second),
		Response: length(c.GetResponse(), 120*time.Second),
		LLMTotal: length(c.GetLlmTotal(), 300*time.Second),
		LLMChunk: length(c.GetLlmChunk(), 60*time.Second),
		Tool:     length(c.GetTool(), 60*time.Second),
		Tools: map[string]time.Duration{
			"kubectl_apply": 30 * time.Second, "kubectl_get": 15 * time.Second, "file_read": 10 * time.Second, "file_write": 10 * time.Second,
			"browser_navigate": 120 * time.Second, "browser_screenshot": 30 * time.Second, "http_request": 120 * time.Second,
			"git_clone": 300 * time.Second, "git_push": 60 * time.Second,
		},
	}
	for name, d := range c.GetTools() {
		limits.Tools[name] = d.AsDuration()
	}
	return limits
}
