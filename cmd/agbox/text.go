package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/docker/go-units"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ago formats how long ago t was, in the largest unit that fits.
func ago(now, t time.Time) string {
	d := now.Sub(t)
	for _, unit := range []struct {
		name string
		len  time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second}} {
		if n := int(d / unit.len); n == 1 {
			return "1 " + unit.name + " ago"
		} else if n > 1 {
			return fmt.Sprintf("%d %ss ago", n, unit.name)
		}
	}
	return "just now"
}

// stamp formats a time in the local time zone, with milliseconds.
func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Local().Format("2006-01-02T15:04:05.000Z07:00")
}

// orDash shows an empty cell as "-".
func orDash(s string) string {
	return cmp.Or(printable(s), "-")
}

// printable makes characters visible that could control the terminal: text may come from a
// sandbox or a request.
func printable(s string) string { return view.Printable(s) }

// printableLines is like printable, but keeps line breaks and tabs.
func printableLines(s string) string { return view.PrintableLines(s) }

// cut shortens s to at most n columns of the terminal.
func cut(s string, n int) string { return view.Cut(s, n) }

// shellWords quotes a command for the shell.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		plain := func(r rune) bool {
			return !(unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./=:,+@%", r))
		}
		if w != "" && strings.IndexFunc(w, plain) < 0 {
			quoted[i] = w
			continue
		}
		quoted[i] = "'" + strings.ReplaceAll(printable(w), "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// sandboxState is the state in a word, with a remark if it is recovering or degraded, or
// if the daemon stopped it because of what something in it did.
func sandboxState(h *agboxv1.SandboxHandle) string {
	word := strings.ToLower(strings.TrimPrefix(h.GetState().String(), "SANDBOX_STATE_"))
	switch {
	case h.GetRestarting():
		return word + " (restarting)"
	case h.GetRecovering():
		return word + " (recovering)"
	case h.GetDegraded():
		return word + " (degraded)"
	case h.GetState() == agboxv1.SandboxState_SANDBOX_STATE_STOPPED && h.GetErrorCode() != "": // by the daemon
		return word + " (" + strings.ToLower(strings.ReplaceAll(h.GetErrorCode(), "_", " ")) + ")"
	}
	return word
}

func execState(e *agboxv1.ExecStatus) string {
	return strings.ToLower(strings.TrimPrefix(e.GetState().String(), "EXEC_STATE_"))
}

// byteCount formats a number of transferred bytes, in powers of 1000.
func byteCount(n int64) string {
	return units.CustomSize("%.4g %s", float64(n), 1000, []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"})
}

// memoryCount formats a number of bytes of memory, in powers of 1024.
func memoryCount(n uint64) string {
	return units.CustomSize("%.4g %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
}

const (
	// foldIndent is how much further than its key a value goes on that is longer than a line.
	foldIndent = "    "
	// leastFold is the least number of columns that such a value has, also beyond the
	// terminal.
	leastFold = 16
)

// printOutline writes the set fields of a message as indented lines that read like
// YAML, with the field names of the .proto files. On a terminal of width columns, a value
// that is longer than a line goes on in the next ones; 0 means that none does.
func printOutline(w io.Writer, m proto.Message, width int) error {
	o := outline{width: width}
	o.fields(m.ProtoReflect(), "")
	_, err := io.WriteString(w, o.String())
	return err
}

type outline struct {
	strings.Builder
	width int
}

func (o *outline) fields(m protoreflect.Message, indent string) {
	list := m.Descriptor().Fields()
	for i := range list.Len() {
		f := list.Get(i)
		if !m.Has(f) {
			continue
		}
		v, key := m.Get(f), indent+string(f.Name())+":"
		switch {
		case f.IsMap():
			o.WriteString(key + "\n")
			o.entries(f, v.Map(), indent+"  ")
		case f.IsList():
			o.WriteString(key + "\n")
			for i := range v.List().Len() {
				o.value(f, v.List().Get(i), indent+"-", indent)
			}
		default:
			o.value(f, v, key, indent)
		}
	}
}

func (o *outline) entries(f protoreflect.FieldDescriptor, m protoreflect.Map, indent string) {
	all := make(map[string]protoreflect.Value, m.Len())
	for k, v := range m.Range {
		all[k.String()] = v
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		o.value(f.MapValue(), all[key], indent+plainOrQuoted(key)+":", indent)
	}
}

// value writes one value after its key. A message goes on the lines below, indented.
func (o *outline) value(f protoreflect.FieldDescriptor, v protoreflect.Value, key, indent string) {
	if f.Kind() != protoreflect.MessageKind {
		o.line(key, scalar(f, v), indent)
		return
	}
	switch m := v.Message().Interface().(type) {
	case *timestamppb.Timestamp:
		o.line(key, stamp(m), indent)
	case *durationpb.Duration:
		o.line(key, m.AsDuration().String(), indent)
	default:
		inner := outline{width: o.width}
		inner.fields(v.Message(), indent+"  ")
		if text := inner.String(); strings.HasSuffix(key, "-") && text != "" {
			// The first field of a list item goes on the line of the dash.
			fmt.Fprintf(o, "%s %s", key, strings.TrimPrefix(text, indent+"  "))
			return
		} else if text == "" {
			fmt.Fprintf(o, "%s {}\n", key)
			return
		}
		fmt.Fprintf(o, "%s\n%s", key, inner.String())
	}
}

// line writes a printable value after its key.
func (o *outline) line(key, value, indent string) {
	if o.width == 0 {
		fmt.Fprintf(o, "%s %s\n", key, value)
		return
	}
	indent += foldIndent
	lines := view.Fold(" "+value, o.width-view.Width(key), max(leastFold, o.width-len(indent)))
	o.WriteString(strings.TrimRight(key+lines[0], " ") + "\n")
	for _, line := range lines[1:] {
		o.WriteString(indent + strings.TrimRight(line, " ") + "\n")
	}
}

func scalar(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.EnumKind:
		return view.EnumWord(f.Enum(), v.Enum())
	case protoreflect.StringKind:
		return plainOrQuoted(v.String())
	case protoreflect.BytesKind:
		return strconv.Quote(string(v.Bytes()))
	}
	return v.String()
}

// plainOrQuoted quotes strings that YAML would read differently or that hold control
// characters.
func plainOrQuoted(s string) string {
	quote := s == "" || strings.TrimSpace(s) != s || printable(s) != s ||
		strings.ContainsAny(s[:1], "-?:,[]{}#&*!|>'\"%@`") || strings.Contains(s, ": ") || strings.HasSuffix(s, ":") || strings.Contains(s, " #")
	if quote {
		return strconv.Quote(s)
	}
	return s
}

// collect returns what of makes of each item.
func collect[T, R any](list []T, of func(T) R) []R {
	all := make([]R, len(list))
	for i, item := range list {
		all[i] = of(item)
	}
	return all
}

// commandWidth is how much of a command a message shows, in columns.
const commandWidth = 60

// tilde shortens a path below the home directory.
func tilde(path, home string) string {
	if rest, ok := strings.CutPrefix(path, home+string(filepath.Separator)); ok && home != "" {
		return "~/" + rest
	}
	return path
}

// enumWord is the readable form of an enum value.
func enumWord(value, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(value, prefix)), "_", " ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// nameOf is what a person calls a sandbox: its name, else its id.
func nameOf(h *agboxv1.SandboxHandle) string { return cmp.Or(h.GetName(), h.GetSandboxId()) }

// agentName is what a person calls an agent: its name, else its id.
func agentName(g interface {
	GetName() string
	GetAgentId() string
}) string {
	return cmp.Or(g.GetName(), g.GetAgentId())
}
