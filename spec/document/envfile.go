package document

import "strings"

// EnvFile reads the variables of a file such as .env.
func EnvFile(content []byte) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(string(content)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		} else {
			value, _, _ = strings.Cut(value, " #")
			value = strings.TrimSpace(value)
		}
		values[strings.TrimSpace(name)] = value
	}
	return values
}
