// Package store keeps the daemon's durable state in one bbolt file: reserved
// ids, configs and events.
//
// One goroutine does all writes. It runs all waiting updates in one transaction
// (group commit), so concurrent callers share one fsync, and a single caller
// never waits for others to arrive. Reads run in their own transactions. An
// update is on the disk before its caller gets the result.
//
// schema.go shows the bucket tree; create.go explains the order of creation.
package store
