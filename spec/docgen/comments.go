package main

import (
	"regexp"
	"strings"
)

var (
	blockBegins = regexp.MustCompile(`^(?:message|enum) (\w+) \{`)
	fieldBegins = regexp.MustCompile(`^(?:optional |repeated |map<[^>]*> )?(?:[\w.]+ )?(\w+) = -?\d+`)
)

// readComments extracts the comments of a .proto file. It relies on the style of this
// repository: a comment is above its declaration, each declaration is on one line, and
// messages are not nested. The keys are "Message" and "Message.field".
func readComments(proto string) map[string]string {
	comments := make(map[string]string)
	var block string
	var pending []string
	for line := range strings.Lines(proto) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "//"); ok {
			pending = append(pending, strings.TrimSpace(text))
			continue
		}
		if m := blockBegins.FindStringSubmatch(line); m != nil {
			block = m[1]
			comments[block] = strings.Join(pending, " ")
		} else if m := fieldBegins.FindStringSubmatch(line); m != nil && block != "" {
			comments[block+"."+m[1]] = strings.Join(pending, " ")
		} else if line == "}" {
			block = ""
		}
		pending = nil
	}
	return comments
}
