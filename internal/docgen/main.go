// Docgen generates the documentation of sandbox files from the .proto file that defines
// them: docs/spec.md for people and docs/agbox.schema.json for editors.
//
//	go run ./internal/docgen
package main

import (
	"fmt"
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

// generate returns the content of all files by their paths in the repository.
func generate(root string) (map[string][]byte, error) {
	proto, err := os.ReadFile(filepath.Join(root, "proto/agbox/v1/spec.proto"))
	if err != nil {
		return nil, err
	}
	comments := readComments(string(proto))
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
