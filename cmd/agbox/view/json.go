// This file writes messages as the JSON of agbox -o json, which docs/json.md
// describes: the field names of the API, words instead of the names of enum values,
// numbers as numbers, and null for what does not exist.

package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// JSON writes a message as one JSON object, without line breaks. All fields are there,
// in the order of the API, except the members of a oneof that are not set.
func JSON(m proto.Message) (json.RawMessage, error) {
	var w jsonWriter
	w.message(m.ProtoReflect())
	return w.Bytes(), w.err
}

type jsonWriter struct {
	bytes.Buffer
	err error
}

func (w *jsonWriter) message(m protoreflect.Message) {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		w.value(v.AsTime().UTC().Format(time.RFC3339Nano))
		return
	case *durationpb.Duration:
		w.value(seconds(v.AsDuration()))
		return
	}
	w.WriteByte('{')
	fields := m.Descriptor().Fields()
	first := true
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() && !m.Has(f) {
			continue
		}
		w.key(string(f.Name()), &first)
		if absent(m, f) {
			w.WriteString("null")
		} else {
			w.field(f, m.Get(f))
		}
	}
	w.WriteByte('}')
}

// seconds is a duration as a number of seconds, to the nanosecond: a float64 may have more digits than
// that, which no reader of durations takes.
func seconds(d time.Duration) json.Number {
	sign, n := "", uint64(d)
	if d < 0 {
		sign, n = "-", -n
	}
	text := fmt.Sprintf("%s%d.%09d", sign, n/1e9, n%1e9)
	return json.Number(strings.TrimSuffix(strings.TrimRight(text, "0"), "."))
}

// absent reports whether a field is null: it is not set, or it has no meaning yet.
func absent(m protoreflect.Message, f protoreflect.FieldDescriptor) bool {
	if f.HasPresence() && !m.Has(f) {
		return true
	}
	return f.Name() == "exit_code" && !exited(m.Interface())
}

// exited reports whether a message that has an exit code tells of an end with one.
func exited(m proto.Message) bool {
	switch v := m.(type) {
	case *agboxv1.ExecStatus:
		return HasExitCode(v.GetState(), v.GetExitCode())
	case *agboxv1.ExecEventDetails:
		return HasExitCode(v.GetExecState(), v.GetExitCode())
	case *agboxv1.ContainerStatus:
		return v.GetState() == "exited" || v.GetState() == "dead"
	case *agboxv1.IncarnationEnd:
		return v.GetKind() != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST && v.GetKind() != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED
	}
	return true
}

// HasExitCode reports whether a command in this state, and with this code, has ended with an
// exit code. A command that failed has one if it was not found or not executable.
func HasExitCode(s agboxv1.ExecState, code int32) bool {
	switch s {
	case agboxv1.ExecState_EXEC_STATE_FINISHED, agboxv1.ExecState_EXEC_STATE_CANCELLED:
		return true
	case agboxv1.ExecState_EXEC_STATE_FAILED:
		return code != 0
	}
	return false
}

func (w *jsonWriter) key(name string, first *bool) {
	if !*first {
		w.WriteByte(',')
	}
	*first = false
	w.value(name)
	w.WriteByte(':')
}

func (w *jsonWriter) field(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case f.IsMap():
		w.mapping(f, v.Map())
	case f.IsList():
		w.WriteByte('[')
		for i := range v.List().Len() {
			if i > 0 {
				w.WriteByte(',')
			}
			w.single(f, v.List().Get(i))
		}
		w.WriteByte(']')
	default:
		w.single(f, v)
	}
}

// mapping writes a map in the order of its keys.
func (w *jsonWriter) mapping(f protoreflect.FieldDescriptor, m protoreflect.Map) {
	values := make(map[string]protoreflect.Value, m.Len())
	for k, v := range m.Range {
		values[k.String()] = v
	}
	w.WriteByte('{')
	first := true
	for _, key := range slices.Sorted(maps.Keys(values)) {
		w.key(key, &first)
		w.single(f.MapValue(), values[key])
	}
	w.WriteByte('}')
}

func (w *jsonWriter) single(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		w.message(v.Message())
	case protoreflect.EnumKind:
		w.value(EnumWord(f.Enum(), v.Enum()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) { // JSON has no such numbers
			w.WriteString("null")
			return
		}
		w.value(v.Interface())
	default: // strings, numbers, booleans; bytes become base64
		w.value(v.Interface())
	}
}

func (w *jsonWriter) value(v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil && w.err == nil {
		w.err = err
	}
	w.Truncate(w.Len() - 1) // the line break
}

// EnumWord is the word for an enum value, as tables show it, but with underscores between its
// parts: "ready" for SANDBOX_STATE_READY. The words for agents are in capitals: "IDLE".
// Names that do not begin with the name of their enum stay: SANDBOX_READY is an event.
func EnumWord(enum protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	value := enum.Values().ByNumber(number)
	if value == nil {
		return fmt.Sprint(number)
	}
	word, cut := strings.CutPrefix(string(value.Name()), enumPrefix(enum))
	if cut && !capitalEnum(enum) {
		return strings.ToLower(word)
	}
	return word
}

// capitalEnum reports whether the words of an enum are in capitals, as programs of agents know
// them.
func capitalEnum(enum protoreflect.EnumDescriptor) bool {
	return strings.HasPrefix(enum.ParentFile().Path(), "agbox/v1/agent") && enum.Name() != "LeaseMode"
}

// enumPrefix is what the names of an enum's values begin with: EXEC_STATE_ for ExecState.
func enumPrefix(enum protoreflect.EnumDescriptor) string {
	var b strings.Builder
	for i, r := range string(enum.Name()) {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String() + "_"
}
