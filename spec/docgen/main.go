// Docgen generates the documentation of sandbox files from the .proto files that define
// them: docs/spec.md for people and docs/agbox.schema.json for editors.
//
//	go run ./spec/docgen
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	files, err := generate(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "docgen:", err)
			os.Exit(1)
		}
	}
}

// allComments reads the comments of the .proto files that define sandbox files.
func allComments(root string) (map[string]string, error) {
	comments := make(map[string]string)
	for _, name := range []string{"spec.proto", "agent.proto"} {
		proto, err := os.ReadFile(filepath.Join(root, "proto/agbox/v1", name))
		if err != nil {
			return nil, err
		}
		maps.Copy(comments, readComments(string(proto)))
	}
	return comments, nil
}

// generate returns the content of all files by their paths in the repository.
func generate(root string) (map[string][]byte, error) {
	comments, err := allComments(root)
	if err != nil {
		return nil, err
	}
	schema, err := schemaOf(comments)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(comments, filepath.Join(root, "docs/examples"))
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"docs/agbox.schema.json": schema, "docs/spec.md": page}, nil
}
