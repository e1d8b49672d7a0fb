package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
)

// The values of settings. The error of Set is part of a sentence that says what is wrong
// and what is allowed. Flags and the file use the same.

// timeValue is a duration with a minimum.
type timeValue struct {
	to    *time.Duration
	least time.Duration
}

func (v timeValue) String() string {
	return document.FormatDuration(*v.to)
}

func (v timeValue) Type() string { return "duration" }

func (v timeValue) Set(text string) error {
	d, err := document.ParseDuration(text)
	if err != nil {
		return err
	}
	if d < v.least {
		return fmt.Errorf("%s is too short: give at least %s", text, v.least)
	}
	*v.to = d
	return nil
}

// optionalTime is a duration that may stay unset, which is nil. 0 means never.
type optionalTime struct{ to **time.Duration }

func (v optionalTime) String() string {
	if *v.to == nil {
		return ""
	}
	return document.FormatDuration(**v.to)
}

func (v optionalTime) Type() string { return "duration" }

func (v optionalTime) Set(text string) error {
	var d time.Duration
	if err := (timeValue{&d, 0}).Set(text); err != nil {
		return err
	}
	*v.to = &d
	return nil
}

// countValue is a number that has a least value.
type countValue struct {
	to    *int
	least int
	// most is the largest number; 0 means that there is none.
	most int
}

func (v countValue) String() string {
	return strconv.Itoa(*v.to)
}

func (v countValue) Type() string { return "int" }

func (v countValue) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < v.least {
		return fmt.Errorf("%q is not a whole number of at least %d", text, v.least)
	}
	if v.most > 0 && n > v.most {
		return fmt.Errorf("%q is more than %d", text, v.most)
	}
	*v.to = n
	return nil
}

// sizeValue is a number of bytes; 0 means no limit.
type sizeValue struct{ to *uint64 }

func (v sizeValue) String() string {
	n, unit := *v.to, ""
	for _, next := range []string{"k", "m", "g", "t"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, next
	}
	return strconv.FormatUint(n, 10) + unit
}

func (v sizeValue) Type() string { return "size" }

func (v sizeValue) Set(text string) error {
	n, err := document.ParseBytes(text)
	if err != nil {
		return err
	}
	*v.to = uint64(n)
	return nil
}

// memoryValue is a reconcile.MemoryDefault.
type memoryValue struct{ to *reconcile.MemoryDefault }

func (v memoryValue) String() string {
	switch {
	case v.to.Percent > 0:
		return strconv.Itoa(v.to.Percent) + "%"
	case v.to.Bytes > 0:
		n := uint64(v.to.Bytes)
		return sizeValue{&n}.String()
	}
	return "unlimited"
}

func (v memoryValue) Type() string { return "share" }

func (v memoryValue) Set(text string) error {
	if share, ok := strings.CutSuffix(text, "%"); ok {
		n, err := strconv.Atoi(share)
		if err != nil || n < 1 || n > 100 {
			return fmt.Errorf("%q is not a share from 1%% to 100%%", text)
		}
		*v.to = reconcile.MemoryDefault{Percent: n}
		return nil
	}
	n, err := document.ParseMemory(text)
	if err != nil {
		return err
	}
	if n < spec.LeastMemory && text != "unlimited" {
		return fmt.Errorf("%q is less than the 6m that the engine needs", text)
	}
	*v.to = reconcile.MemoryDefault{Bytes: n}
	return nil
}

// rangesValue is a list of networks. The first Set replaces the default; later ones
// append.
type rangesValue struct {
	to  *[]netip.Prefix
	set *bool
}

func (v rangesValue) String() string {
	return strings.Join(v.list(), ",")
}

func (v rangesValue) list() []string {
	words := make([]string, len(*v.to))
	for i, p := range *v.to {
		words[i] = p.String()
	}
	return words
}

func (v rangesValue) Type() string { return "strings" }

func (v rangesValue) Set(text string) error {
	var add []netip.Prefix
	for word := range strings.SplitSeq(text, ",") {
		prefix, err := netip.ParsePrefix(word)
		if err != nil {
			return fmt.Errorf("%q is not a range such as 10.222.0.0/16", word)
		}
		add = append(add, prefix)
	}
	if !*v.set {
		*v.to, *v.set = nil, true
	}
	*v.to = append(*v.to, add...)
	return nil
}

// wordValue is one of some values that each have a word.
type wordValue[T comparable] struct {
	to      *T
	choices []choice[T]
}

type choice[T comparable] struct {
	word  string
	value T
}

var (
	policies = []choice[agboxv1.RevivalPolicy]{
		{"fail", agboxv1.RevivalPolicy_REVIVAL_POLICY_FAIL},
		{"revive", agboxv1.RevivalPolicy_REVIVAL_POLICY_REVIVE},
		{"reap", agboxv1.RevivalPolicy_REVIVAL_POLICY_REAP},
	}
	fences     = []choice[reconcile.FenceMode]{{"auto", reconcile.FenceIfPossible}, {"require", reconcile.FenceRequired}, {"off", reconcile.FenceOff}}
	lifetimes  = []choice[agboxv1.AgentLifetime]{{"held", agboxv1.AgentLifetime_AGENT_LIFETIME_HELD}, {"detached", agboxv1.AgentLifetime_AGENT_LIFETIME_DETACHED}}
	recoveries = []choice[machine.PendingRecovery]{{"resume", machine.PendingResume}, {"fail", machine.PendingFail}}
)

func (v wordValue[T]) String() string {
	for _, c := range v.choices {
		if c.value == *v.to {
			return c.word
		}
	}
	return ""
}

func (v wordValue[T]) Type() string { return "string" }

func (v wordValue[T]) Set(text string) error {
	var words []string
	for _, c := range v.choices {
		if c.word == text {
			*v.to = c.value
			return nil
		}
		words = append(words, c.word)
	}
	last := len(words) - 1
	return fmt.Errorf("%q is not %s or %s", text, strings.Join(words[:last], ", "), words[last])
}
