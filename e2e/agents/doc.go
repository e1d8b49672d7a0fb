// Package agents tests agents from outside, on the real binaries: that they survive
// crashes of their program, their sandbox and the daemon, and that they end when they
// must.
package agents
