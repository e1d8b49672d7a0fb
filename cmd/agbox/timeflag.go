package main

import (
	"strconv"
	"strings"
	"time"
)

// localTimes are the layouts of times without a zone, which are local times.
var localTimes = []string{
	"2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02T15:04:05.999999999",
	"2006-01-02 15:04", "2006-01-02 15:04:05",
}

// timeFlag reads a point in time: a duration before now, a date or time, or
// RFC 3339. Empty is the zero time.
func timeFlag(flag, value string, now time.Time) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	if d, ok := duration(value); ok {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, value); err == nil {
		return t, nil
	}
	for _, form := range localTimes {
		if t, err := time.ParseInLocation(form, value, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usagef("--%s %q is not a time: give a duration such as 10m or 2d, a date such as 2026-05-04, or RFC 3339.", flag, value)
}

// duration is like time.ParseDuration, but allows days.
func duration(value string) (time.Duration, bool) {
	var whole time.Duration
	if days, rest, ok := strings.Cut(value, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, false
		}
		whole, value = time.Duration(n)*24*time.Hour, rest
		if rest == "" {
			return whole, true
		}
	}
	d, err := time.ParseDuration(value)
	return whole + d, err == nil && d >= 0
}
