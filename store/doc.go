// Package store keeps what the daemon must never forget: reserved ids, configs
// and events, in one bbolt file.
//
// All writes go through one goroutine that puts the waiting updates into one
// transaction (group commit), so that many callers share one wait for the disk
// and a lone caller waits for nobody. Reads run in their own transactions.
// What a caller was told is on the disk.
//
// The bucket tree stands in schema.go, the order of first creation in create.go.
package store
