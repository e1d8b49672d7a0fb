package document

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/notation"
)

// shorts read messages that may be written as one word, by message name.
var shorts = map[protoreflect.Name]func(string) ([]proto.Message, error){
	"PortMapping": func(text string) ([]proto.Message, error) {
		ports, err := notation.Ports(text)
		all := make([]proto.Message, len(ports))
		for i, p := range ports {
			all[i] = p
		}
		return all, err
	},
	"MountSpec":  one(notation.Mount),
	"CopySpec":   one(notation.Copy),
	"VolumeSpec": one(notation.Volume),
	"TmpfsSpec":  one(notation.Tmpfs),
	"UlimitSpec": one(notation.Ulimit),
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
	"command": notation.Command,
	"entrypoint": func(text string) ([]string, error) {
		if text == "" {
			return []string{""}, nil // no entrypoint
		}
		return notation.Command(text)
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
