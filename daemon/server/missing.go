package server

import (
	"fmt"

	"buf.build/go/protovalidate"
)

// askFor says what to give for an empty field, by the field's name.
var askFor = map[string]string{
	"sandbox_id":     "the id of a sandbox",
	"exec_id":        "the id of an exec",
	"kind":           "the kind of what is meant: a sandbox, an exec or an agent",
	"command":        "a command",
	"label_selector": "at least one label",
	"image":          "an image",
	"name":           "a name",
	"service":        "the name of a service",
	"path":           "an absolute path",
	"new_path":       "an absolute path to move to",
	"signal":         "a signal from 1 to 64",
	"item":           "what the message is: its fields are all unset",
}

// missing returns the sentence for a required field that is empty, or "" for any other
// violation.
func missing(v *protovalidate.Violation) string {
	switch v.Proto.GetRuleId() {
	case "string.pattern", "string.min_len":
		if text, ok := v.FieldValue.Interface().(string); !ok || text != "" || v.FieldDescriptor != nil && v.FieldDescriptor.IsMap() {
			return ""
		}
	case "int32.gte_lte":
		if v.FieldValue.Int() != 0 {
			return ""
		}
	case "repeated.min_items", "map.min_pairs", "required":
	default:
		return ""
	}
	elements := v.Proto.GetField().GetElements()
	last := elements[len(elements)-1]
	if what := askFor[last.GetFieldName()]; what != "" && !last.HasIndex() {
		return fmt.Sprintf("Give %s.", what)
	}
	return fmt.Sprintf("Give %s a value.", protovalidate.FieldPathString(v.Proto.GetField()))
}
