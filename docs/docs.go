// Package docs has documents that the programs print.
package docs

import _ "embed"

// Schema is the JSON Schema of agbox.yaml; go run ./scripts/docgen writes it.
//
//go:embed agbox.schema.json
var Schema []byte

// Spec is the reference of agbox.yaml in Markdown; go run ./scripts/docgen writes it.
//
//go:embed spec.md
var Spec string
