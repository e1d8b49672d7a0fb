// Package e2e tests agbox from outside: the real binaries on a real Docker engine, only
// through the command line and the public API. Anything that a test leaves behind, in the
// engine or as a process, fails that test.
//
// The tests need what "make images build" makes.
package e2e
