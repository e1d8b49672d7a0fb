// Package e2e tests agbox from outside: the real binaries on a real Docker
// engine, through the command line and the public API alone. What a test leaves
// behind, in the engine or as a process, is a failure of that test.
//
// The tests need what "make images build" makes.
package e2e
