// Package docs has documents that the programs print.
package docs

import _ "embed"

// Schema is the JSON Schema of agbox.yaml; go run ./internal/docgen writes it.
//
//go:embed agbox.schema.json
var Schema []byte
