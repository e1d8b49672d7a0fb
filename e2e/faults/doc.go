// Package faults makes the faults that agbox must survive, on the real binaries
// and a real engine, and checks the same invariants after each: what was
// acknowledged is there, no command ran twice, exit statuses are real and set
// once, every byte of a log is there once and in order, and the engine has
// nothing of ours too much and nothing of anybody else's too little.
//
// The tests print a table; FAULTS.md lists every fault. They need root, and what
// "make images build" makes.
package faults
