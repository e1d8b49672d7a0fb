package document

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// shorts read messages that may be written as one word, by message name.
var shorts = map[protoreflect.Name]func(string) ([]proto.Message, error){
	"PortMapping": func(text string) ([]proto.Message, error) {
		ports, err := ParsePorts(text)
		all := make([]proto.Message, len(ports))
		for i, p := range ports {
			all[i] = p
		}
		return all, err
	},
	"MountSpec":  one(ParseMount),
	"CopySpec":   one(ParseCopy),
	"VolumeSpec": one(ParseVolume),
	"TmpfsSpec":  one(ParseTmpfs),
	"UlimitSpec": one(ParseUlimit),
	"ServiceDependency": func(text string) ([]proto.Message, error) {
		return []proto.Message{&agboxv1.ServiceDependency{Name: text}}, nil
	},
	"BuildSpec": func(text string) ([]proto.Message, error) {
		return []proto.Message{&agboxv1.BuildSpec{Context: text}}, nil
	},
	"WorkspaceSpec": func(text string) ([]proto.Message, error) {
		return []proto.Message{&agboxv1.WorkspaceSpec{Source: text}}, nil
	},
}

// HasShort reports whether a message may be written as one word.
func HasShort(message protoreflect.Name) bool { return shorts[message] != nil }

// wholes read lists of strings that may be written as one string, by field name.
var wholes = map[protoreflect.Name]func(string) ([]string, error){
	"command": ParseCommand,
	"entrypoint": func(text string) ([]string, error) {
		if text == "" {
			return []string{""}, nil // no entrypoint
		}
		return ParseCommand(text)
	},
	"test": func(text string) ([]string, error) { return []string{"CMD-SHELL", text}, nil },
}

// HasWhole reports whether a list of strings may be written as one string.
func HasWhole(field protoreflect.Name) bool { return wholes[field] != nil }

func one[M proto.Message](read func(string) (M, error)) func(string) ([]proto.Message, error) {
	return func(text string) ([]proto.Message, error) {
		m, err := read(text)
		if err != nil {
			return nil, err
		}
		return []proto.Message{m}, nil
	}
}

// elsewhere maps words of other tools to our fields.
var elsewhere = map[string]string{
	"env": "envs", "environment": "envs", "containerEnv": "envs", "container_env": "envs",
	"cpu": "cpu_limit", "cpus": "cpu_limit", "memory": "memory_limit", "mem": "memory_limit", "mem_limit": "memory_limit",
	"disk": "disk_limit", "gpu": "gpus", "pids": "pids_limit", "shm": "shm_size",
	"cmd": "command", "entrypoint": "command", "workdir": "working_dir", "cwd": "working_dir", "workspaceFolder": "working_dir",
	"publish": "ports", "port": "ports", "expose": "ports", "forwardPorts": "ports",
	"tools": "builtin_tools", "ttl": "idle_ttl", "restart": "revival", "restart_policy": "revival",
	"exclude": "exclude_patterns", "ignore": "exclude_patterns", "gitignore": "use_gitignore",
	"cap_add": "security", "cap_drop": "security", "privileged": "security", "security_opt": "security",
	"postCreateCommand": "post_create", "post_create_command": "post_create", "remoteUser": "user",
	"host": "host_port", "published": "host_port", "container": "container_port", "ip": "host_ip", "address": "host_ip",
	"src": "source", "from": "source", "host_path": "source", "path": "target", "dst": "target", "destination": "target", "to": "target",
	"readonly": "read_only", "ro": "read_only", "rw": "writable", "pull": "pull_policy", "arch": "platform",
	"optional": "required", "hooks": "post_start_on_primary", "post_start": "post_start_on_primary", "health_check": "healthcheck",
}

// snake converts idleTtl, idle-ttl and "idle ttl" to idle_ttl.
func snake(key string) string {
	var b strings.Builder
	for i, c := range key {
		switch {
		case c >= 'A' && c <= 'Z':
			if i > 0 && key[i-1] >= 'a' && key[i-1] <= 'z' {
				b.WriteByte('_')
			}
			b.WriteRune(c + 'a' - 'A')
		case c == '-' || c == ' ':
			b.WriteByte('_')
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// nearest returns the most similar word if it is similar enough.
func nearest(word string, words []string) string {
	const most = 64
	if len(word) > most {
		return ""
	}
	best, meant := max(1, min(len(word)/3, 3)), ""
	for _, w := range words {
		if d := distance(word, w); d <= best && d < len(w) {
			best, meant = d-1, w
		}
	}
	return meant
}

// distance counts the letters to insert, remove, replace or swap with their neighbour to
// turn a into b.
func distance(a, b string) int {
	var before, last []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last = last, row
		row = make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
