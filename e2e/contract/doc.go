// Package contract tests that clients of the published contract work unchanged.
//
// Its client knows only the published table of message fields, numbers and enum values
// (proto/agbox/v1/testdata/wire.tsv). It imports neither our generated messages nor our
// Go SDK, and it refuses an enum value that the table does not have, as the published
// Python SDK does. TestPublishedContract has a case for each behaviour that such clients
// rely on.
package contract
