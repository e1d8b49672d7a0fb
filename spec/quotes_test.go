package spec

import (
	"strings"
	"testing"
)

// A file may be a link's target or a copy of one, so an error must not print it line by line.
func TestProblemsQuoteAtMostALineAndLittleOfIt(t *testing.T) {
	const most = 600 // bytes of a message, with its own words
	lines, long := "first\\nsecond\\nthird", strings.Repeat("secret", 10_000)
	for _, value := range []string{`"` + lines + `"`, `"` + long + `"`} {
		for _, text := range []string{
			value, value + ": 1", "- " + value, "image: x\n" + value + ": 1", "image: {" + value + ": 1}", "image: x\nnetwork: " + value, "image: x\nports: [" + value + "]",
			"image: x\nmemory_limit: " + value, "image: x\nidle_ttl: " + value, "image: x\nmounts: [" + value + "]", "image: x\ncopies: [" + value + "]", "image: x\nulimits: [" + value + "]",
			"image: x\nenvs: [" + value + "]", "image: x\nlabels: [" + value + "]", "image: x\ncpu_limit: " + value, "image: x\nuser: " + value, "image: x\nbuiltin_tools: [" + value + "]",
			"image: x\nworkspace: {" + value + ": 1}", "image: x\nservices: [{name: " + value + "}]", "image: x\nmain_command: " + value[:len(value)-1] + " 'x\"", "base: {file: x, " + value + ": 1}",
		} {
			for _, p := range resolve(t, file(text)).Problems {
				if m := p.GetMessage(); len(m)+len(p.GetField()) > most || strings.ContainsAny(m+p.GetField(), "\n\r") {
					t.Errorf("%.40q gives %d bytes in field and message: %.100q, %.200q", text, len(p.GetField())+len(m), p.GetField(), m)
				}
			}
		}
	}
}
