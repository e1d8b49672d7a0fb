// Package agboxv1 has the messages and services of the public API, generated from the .proto
// files beside it.
package agboxv1

import (
	"errors"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Files has the descriptors of this package, and finds those of protoregistry.GlobalFiles as
// well. This package is not in there: a program may link another Go package for the proto
// package agbox.v1, made for the published contract, and two of one name in there end it at
// its start.
var Files = new(FileRegistry)

// Types has the messages and enums of this package, which are not in
// protoregistry.GlobalTypes either.
var Types = new(protoregistry.Types)

// FileRegistry is a registry of files beside the global one. Its zero value is empty.
type FileRegistry struct{ own protoregistry.Files }

// RegisterFile adds a file. Only the generated code of this package does so.
func (r *FileRegistry) RegisterFile(file protoreflect.FileDescriptor) error {
	return r.own.RegisterFile(file)
}

// RangeFilesByPackage calls f for each file of this registry in a proto package until f
// returns false.
func (r *FileRegistry) RangeFilesByPackage(name protoreflect.FullName, f func(protoreflect.FileDescriptor) bool) {
	r.own.RangeFilesByPackage(name, f)
}

// FindFileByPath returns a file of this registry or else of the global one.
func (r *FileRegistry) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	file, err := r.own.FindFileByPath(path)
	if errors.Is(err, protoregistry.NotFound) {
		return protoregistry.GlobalFiles.FindFileByPath(path)
	}
	return file, err
}

// FindDescriptorByName returns what has a name in this registry or else in the global one.
func (r *FileRegistry) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	d, err := r.own.FindDescriptorByName(name)
	if errors.Is(err, protoregistry.NotFound) {
		return protoregistry.GlobalFiles.FindDescriptorByName(name)
	}
	return d, err
}
