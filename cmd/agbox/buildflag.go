package main

import (
	"errors"
	"strings"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// imageFlag is the flag that says what the image is; "" if none does.
func (o *specOptions) imageFlag() string {
	switch {
	case o.image != "":
		return "--image"
	case o.build != "":
		return "--build"
	}
	return ""
}

// buildFlag reads a folder, or the YAML of a build in a sandbox file.
func buildFlag(text string) (*agboxv1.BuildSpec, error) {
	if text == "" {
		return nil, nil
	}
	build := &agboxv1.BuildSpec{Context: text}
	if strings.HasPrefix(text, "{") {
		build = new(agboxv1.BuildSpec)
		if err := yamlFlag(text, build); err != nil {
			return nil, flagError("build", err)
		}
	}
	if build.GetContext() != "" {
		build.Context = here(build.GetContext())
	}
	return build, nil
}

// yamlFlag reads a message as it is written in a sandbox file.
func yamlFlag(text string, into proto.Message) error {
	report := new(document.Report)
	if node := document.YAML("", []byte(text), report); node != nil {
		(&document.Reader{Report: report}).Message(node, into.ProtoReflect(), "")
	}
	if len(report.Problems) == 0 {
		return nil
	}
	p := report.Problems[0]
	return errors.New(strings.TrimPrefix(p.GetField()+": ", ": ") + strings.TrimSuffix(p.GetMessage(), "."))
}
