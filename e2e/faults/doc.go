// Package faults injects the faults that agbox must survive, on the real binaries and a
// real engine. After each fault it checks the same invariants: what was acknowledged
// exists, no command ran twice, exit statuses are real and set once, every byte of a log
// is there once and in order, and the engine has no leftover of ours and lacks nothing of
// anybody else's.
//
// The tests print a table. FAULTS.md lists every fault. The tests need root, and what
// "make images build" makes.
package faults
