package main

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// presetDockerfile is the recipe of all images; codingAgent.BuildArgs has its arguments.
//
//go:embed presets/Dockerfile
var presetDockerfile []byte

//go:embed presets/settle
var presetSettle embed.FS

// defaultPresetBase is the base of the images if the user names none, and presetBaseVariable the variable
// that names one. Any Debian works, and so does an image that is derived from it.
const (
	defaultPresetBase  = "debian:12-slim"
	presetBaseVariable = "AGBOX_PRESET_BASE"
)

// defaultPresetUID is the user id of the agent if the caller is root.
const defaultPresetUID = 1000

// The versions of Node.js and npm in every image.
const (
	nodeVersion = "22.21.0"
	npmVersion  = "10.9.4"
)

// codingAgent is a preset: a coding agent that agbox runs with one command, the image of it, and
// what it may take from the host.
type codingAgent struct {
	// Name is the name of the preset. Title is the name of the agent.
	Name, Title string
	// Command is the agent's program.
	Command string
	// Package and Version are those of npm.
	Package, Version string
	// ImageEnv is the variable with an image to use instead.
	ImageEnv string
	// Unattended are arguments that switch the agent's own prompts off, as far as files do
	// not.
	Unattended []string
	// Tool is the built-in tool that brings in the agent's own login.
	Tool string
	// Keys are the caller's variables that replace the login. They are handed over if they
	// are set, and so are Settings, which prove no identity.
	Keys, Settings []string
	// Env are variables of the sandbox.
	Env map[string]string
	// Obeys are files and folders of a repository that make the agent run programs, or send
	// the login elsewhere, before it asks anything. The agent leaves them out with the
	// arguments Off, and as Settle says. Copied means that it has no such switch, or none that
	// holds, so only a copy of the folder can be without them.
	Obeys, Off []string
	// Nested are names of files and folders that the agent obeys in any folder. Imports are
	// files of instructions, in any folder, that bring other files in, and so are the .md files
	// of the folders Rules.
	Nested, Imports, Rules []string
	Copied                 bool
}

// presetExtras are the built-in tools that a user may hand over to any preset beside the login.
var presetExtras = []string{"git", "gh", "ssh-agent"}

// Settle is a shell command that prepares the sandbox: with files in the home of its user,
// it answers the agent's questions about trust in the folder, the first use and updates.
// With ask the agent keeps its prompts, with off it leaves out what Obeys names. Files that
// exist are left as they are, except for the mark of Codex that the folder is not trusted.
func (p codingAgent) Settle(ask, off bool) string {
	script, err := presetSettle.ReadFile("presets/settle/" + p.Name + ".sh")
	if err != nil {
		panic(err) // the file is embedded, and a test reads it
	}
	word := map[bool]string{true: "yes"}
	// The folder is written into JSON and TOML.
	return "umask 077; ask=" + word[ask] + "; off=" + word[off] + "; here=$(pwd | sed 's/[\\\\\"]/\\\\&/g')\n" + string(script)
}

// Run is the command with the user's own arguments. With ask the agent keeps its prompts,
// with off it leaves out what Obeys names.
func (p codingAgent) Run(ask, off bool, args []string) []string {
	command := []string{p.Command}
	if off {
		command = append(command, p.Off...)
	}
	if !ask {
		command = append(command, p.Unattended...)
	}
	return append(command, args...)
}

// allPresets returns all presets, in the order in which they are shown.
func allPresets() []codingAgent { return slices.Clone(presetList) }

// findPreset returns the preset with a name; nil if there is none.
func findPreset(name string) *codingAgent {
	if i := slices.IndexFunc(presetList, func(p codingAgent) bool { return p.Name == name }); i >= 0 {
		p := presetList[i]
		return &p
	}
	return nil
}

// presetNames returns the names of all presets.
func presetNames() []string {
	var names []string
	for _, p := range presetList {
		names = append(names, p.Name)
	}
	return names
}

var presetList = []codingAgent{
	{
		Name: "claude", Title: "Claude Code", Command: "claude",
		Package: "@anthropic-ai/claude-code", Version: "2.1.330", ImageEnv: "AGBOX_CLAUDE_IMAGE",
		Unattended: []string{"--dangerously-skip-permissions"}, Tool: "claude-login",
		Keys:     []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"},
		Settings: []string{"ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL"},
		// The first says that the folder is trusted, the second that root may skip prompts.
		Env: map[string]string{"CLAUDE_CODE_SANDBOXED": "1", "IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1"},
		// Commands, agents and skills may have hooks, and skills are found in any folder.
		Obeys: []string{".claude", ".mcp.json"}, Nested: []string{".claude"}, Imports: []string{"CLAUDE.md", "CLAUDE.local.md"}, Rules: []string{".claude/rules"},
		Off: []string{"--setting-sources", "user", "--strict-mcp-config"},
	},
	{
		Name: "codex", Title: "Codex", Command: "codex",
		Package: "@openai/codex", Version: "0.169.0", ImageEnv: "AGBOX_CODEX_IMAGE",
		Tool: "codex-login", Keys: []string{"OPENAI_API_KEY", "CODEX_API_KEY"}, Settings: []string{"OPENAI_BASE_URL"},
		Obeys: []string{".codex"}, // off by the trust_level that Settle writes
	},
	{
		Name: "opencode", Title: "opencode", Command: "opencode",
		Package: "opencode-ai", Version: "1.18.33", ImageEnv: "AGBOX_OPENCODE_IMAGE",
		Tool: "opencode-login", Keys: []string{"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "GEMINI_API_KEY"},
		Env: map[string]string{"OPENCODE_DISABLE_AUTOUPDATE": "1"},
		// With OPENCODE_DISABLE_PROJECT_CONFIG it still ran a program of a repository.
		Obeys: []string{"opencode.json", "opencode.jsonc", "tui.json", "tui.jsonc", ".opencode"}, Copied: true,
	},
	{
		Name: "gemini", Title: "Gemini CLI", Command: "gemini",
		Package: "@google/gemini-cli", Version: "0.61.0", ImageEnv: "AGBOX_GEMINI_IMAGE",
		Unattended: []string{"--yolo"}, Tool: "gemini-login",
		Keys: []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}, Settings: []string{"GOOGLE_GEMINI_BASE_URL", "GEMINI_MODEL"},
		// In a folder that it does not trust it neither starts nor acts without prompts.
		Obeys: []string{".gemini", ".env"}, Copied: true,
	},
}

// BuildArgs are the arguments of the Dockerfile for a base image and the user id of the
// agent.
func (p codingAgent) BuildArgs(base string, uid int) map[string]string {
	return map[string]string{
		"BASE": base, "UID": fmt.Sprint(uid), "NODE": nodeVersion, "NPM": npmVersion,
		"PACKAGE": p.Package, "VERSION": p.Version, "COMMAND": p.Command,
	}
}

// Image is the name of the image: its tag is a hash of all that the image is made from.
func (p codingAgent) Image(base string, uid int) string {
	sum := sha256.New()
	sum.Write(presetDockerfile)
	args := p.BuildArgs(base, uid)
	for _, name := range slices.Sorted(maps.Keys(args)) {
		fmt.Fprintf(sum, "\n%s=%q", name, args[name])
	}
	return presetRepository(p.Name) + ":" + hex.EncodeToString(sum.Sum(nil))[:12]
}

// presetRepository is the name of a preset's images, without the tag.
func presetRepository(name string) string { return "agbox/preset-" + name }

// Recipe is the Dockerfile with its arguments filled in, so that `docker build` needs none.
func (p codingAgent) Recipe(base string, uid int) string {
	args := p.BuildArgs(base, uid)
	var b strings.Builder
	for line := range strings.Lines(string(presetDockerfile)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "ARG "); ok {
			line = fmt.Sprintf("ARG %s=%s\n", name, args[name])
		}
		b.WriteString(line)
	}
	return b.String()
}
