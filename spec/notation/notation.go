// Package notation parses short texts for numbers and messages of the API: sizes,
// durations, ports, mounts. Sandbox files, compose files and the flags of the CLI use it.
//
// Its errors are parts of a sentence that say what is right, for example
// `"4gg" is not a size: write a number and k, m, g or t, for example 512m`.
package notation

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
)

// Bytes parses a size such as "512m", "1.5g", "4GiB" or "1048576", as docker does. Units
// are binary: k is 1024 bytes. The result is at least 0.
func Bytes(text string) (int64, error) {
	size, err := units.RAMInBytes(text)
	switch number := strings.TrimRight(strings.ToLower(text), "bikmgtp "); {
	case err != nil || !plainNumber(number):
		return 0, fmt.Errorf("%s is not a size: write a number and k, m, g or t, for example 512m or 4g", quote(text))
	case size < 0 || size == math.MaxInt64: // the number does not fit into an int64
		return 0, fmt.Errorf("%s is more than any machine has: write less, for example 4g", quote(text))
	}
	return size, nil
}

// Memory parses a limit of memory: a size as in Bytes, or "unlimited", which is 0.
func Memory(text string) (int64, error) {
	if text == "unlimited" {
		return 0, nil
	}
	return Bytes(text)
}

// CPUs parses a number of processors such as "1.5" and returns billionths of one. The
// result is greater than 0.
func CPUs(text string) (int64, error) {
	const most = 1 << 20
	whole, fraction, _ := strings.Cut(text, ".")
	number, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || !plainNumber(text) || whole == "" && fraction == "":
		return 0, fmt.Errorf("%s is not a number of processors: write for example 2 or 0.5", quote(text))
	case len(fraction) > 9:
		return 0, fmt.Errorf("%s has more than 9 digits after the point: write fewer", quote(text))
	case number <= 0:
		return 0, fmt.Errorf("%s leaves no processor: write more than 0, for example 0.5", quote(text))
	case number > most:
		return 0, fmt.Errorf("%s is more than any machine has: write fewer, for example 4", quote(text))
	}
	return int64(math.Round(number * 1e9)), nil
}

// plainNumber rejects other forms that ParseFloat accepts: signs, exponents, names.
func plainNumber(text string) bool {
	return text != "" && strings.Trim(text, "0123456789.") == "" && strings.Count(text, ".") <= 1
}

// maxDuration is a hundred years. It fits into a google.protobuf.Duration and a
// time.Duration.
const maxDuration = 100 * 365 * 24 * time.Hour

// Duration parses a time such as "500ms", "10m", "1h30m" or "7d". The result is at least
// 0.
func Duration(text string) (time.Duration, error) {
	word := text
	var sum time.Duration
	if days, rest, found := strings.Cut(word, "d"); found {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || !plainNumber(days) {
			return 0, badDuration(text)
		}
		if n > maxDuration.Hours()/24 {
			return 0, fmt.Errorf("%s is longer than a hundred years: write less", quote(text))
		}
		if sum, word = time.Duration(n*24*float64(time.Hour)), rest; word == "" {
			return sum, nil
		}
	}
	d, err := time.ParseDuration(word)
	switch {
	case err != nil && plainNumber(word):
		return 0, fmt.Errorf("%s has no unit: write for example %ss, %[2]sm or %[2]sh", quote(text), word)
	case err != nil:
		return 0, badDuration(text)
	case d < 0:
		return 0, fmt.Errorf("%s is below zero: write a time from 0 on", quote(text))
	case d > maxDuration-sum:
		return 0, fmt.Errorf("%s is longer than a hundred years: write less", quote(text))
	case word == "0" && sum > 0, strings.HasPrefix(word, "+"):
		return 0, badDuration(text)
	}
	return sum + d, nil
}

func badDuration(text string) error {
	return fmt.Errorf("%s is not a time: write a number and ms, s, m, h or d, for example 500ms, 10m or 1h30m", quote(text))
}

// FormatDuration formats a time as Duration parses it, without empty parts.
func FormatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// quote returns a shortened text in quotes.
func quote(text string) string {
	const most = 80
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "..."
	}
	return strconv.Quote(text)
}
